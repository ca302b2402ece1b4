"""The prior on the layers of a ``torch.nn`` model."""
