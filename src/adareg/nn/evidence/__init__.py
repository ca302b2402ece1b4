"""EvidenceReg: priors on all layers, learned from the data."""
