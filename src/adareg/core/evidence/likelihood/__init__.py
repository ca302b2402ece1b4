"""Likelihoods: what the outputs of a network say of its targets. One file each."""

from __future__ import annotations

from adareg.core.evidence.likelihood.base import Likelihood
from adareg.core.evidence.likelihood.bernoulli import Bernoulli
from adareg.core.evidence.likelihood.categorical import Categorical
from adareg.core.evidence.likelihood.counts import Counts
from adareg.core.evidence.likelihood.gaussian import Gaussian

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Counts",
    "Gaussian",
    "Likelihood",
    "as_likelihood",
]

#: Likelihoods by the name that a user may give.
LIKELIHOODS: dict[str, type[Likelihood]] = {
    one.name: one for one in (Categorical, Bernoulli, Counts, Gaussian)
}


def as_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood of this name, or the object itself."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        return LIKELIHOODS[likelihood]()
    accepted = ", ".join(map(repr, LIKELIHOODS))
    raise ValueError(
        f"likelihood={likelihood!r}: expected one of {accepted}, or an adareg.Likelihood"
    )
