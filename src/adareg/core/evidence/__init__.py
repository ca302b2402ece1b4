"""The evidence rule: likelihoods, curvature, and priors that are updated from a posterior."""
