"""Every way of regularizing that is compared: one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adareg.lab.train.config import Config


@dataclass(frozen=True)
class Space:
    """The one number that a method tunes, and where it is looked for.

    Args:
        field: of ``Method``.
        low: the smallest value.
        high: the largest.
        log: whether orders of magnitude are equally likely, rather than values.
    """

    field: str
    low: float
    high: float
    log: bool = True

    def at(self, quantile: float) -> float:
        """The value below which this share of all draws lies."""
        if self.log:
            return float(self.low * (self.high / self.low) ** quantile)
        return self.low + (self.high - self.low) * quantile


@dataclass(frozen=True, kw_only=True)
class Method:
    """Which ingredients are on, each at the experiment's strength or at one of its own.

    Args:
        label: what readers see.
        weight_decay: True for ``Config.weight_decay``, or a number; like dropout and decov.
        dropout: see weight_decay.
        decov: see weight_decay.
        batch_norm: normalise after every layer but the last.
        rule: AdaReg's rule, or None for no AdaReg.
        layers: which layers AdaReg regularizes.
        strength: AdaReg's λ; None for the experiment's.
        stop_early: train on four fifths of the samples and keep the weights of the epoch with the
            lowest loss on the others.
        tunes: what is tuned in cells with trials; None for nothing.
        tuned_as: the method whose trials decide; empty for its own.
    """

    label: str
    weight_decay: bool | float = False
    dropout: bool | float = False
    decov: bool | float = False
    batch_norm: bool = False
    rule: str | None = None
    layers: str = "last"
    strength: float | None = None
    stop_early: bool = False
    tunes: Space | None = None
    tuned_as: str = ""

    @property
    def learns(self) -> bool:
        """Whether its prior is learned from a posterior, which needs data, not weights alone."""
        return self.rule in ("evidence", "marginal-likelihood")

    def tuned(self, value: float | None) -> Method:
        """The method with the number that it tunes set; None leaves it."""
        if value is None:
            return self
        assert self.tunes is not None
        change: dict[str, Any] = {self.tunes.field: value}
        return replace(self, **change)

    def strengths(self, config: Config) -> Strengths:
        """How much of each ingredient a network of this method gets in a cell; 0 for none."""
        return Strengths(
            _value(self.weight_decay, config.weight_decay),
            _value(self.dropout, config.dropout),
            _value(self.decov, config.decov),
            config.penalty_strength if self.strength is None else self.strength,
        )


class Strengths(NamedTuple):
    """The numbers behind a method's ingredients."""

    weight_decay: float
    dropout: float
    decov: float
    adareg: float


def _value(own: bool | float, default: float) -> float:
    return default if own is True else float(own)


_WEIGHT_DECAY = Space("weight_decay", 1e-5, 1.0)
_DROPOUT = Space("dropout", 0.05, 0.8, log=False)
_DECOV = Space("decov", 1e-4, 10.0)
_LAMBDA = Space("strength", 1e-6, 1e-1)

#: One place to add another. Neighbours share an ingredient, so that a stack, which keeps this
#: order, works on slices.
METHODS: dict[str, Method] = {
    "none": Method(label="none"),
    "early-stopping": Method(label="early stopping", stop_early=True),
    "marginal-likelihood": Method(
        label="marginal likelihood (KFAC-Laplace)", rule="marginal-likelihood", layers="all"
    ),
    "decov": Method(label="DeCov", decov=True, tunes=_DECOV),
    "weight-decay": Method(label="weight decay", weight_decay=True, tunes=_WEIGHT_DECAY),
    "adareg+weight-decay": Method(
        label="AdaReg + weight decay (authors' code)", rule="official", weight_decay=True
    ),
    "adareg-official": Method(label="AdaReg, authors' rule", rule="official"),
    "adareg-joint": Method(label="AdaReg, joint rule", rule="joint"),
    "adareg-conv": Method(label="AdaReg, convolutions", rule="alternating", layers="conv"),
    "adareg-all": Method(label="AdaReg, all layers", rule="alternating", layers="all"),
    "adareg-fc": Method(label="AdaReg, fully connected", rule="alternating", layers="fc"),
    "adareg": Method(label="AdaReg", rule="alternating", tunes=_LAMBDA),
    "adareg+dropout": Method(label="AdaReg + dropout", rule="alternating", dropout=True),
    "dropout": Method(label="dropout", dropout=True, tunes=_DROPOUT),
    "evidence+dropout": Method(
        label="evidence + dropout",
        rule="evidence",
        layers="all",
        dropout=True,
        tunes=_DROPOUT,
        tuned_as="dropout",
    ),
    "evidence": Method(label="evidence", rule="evidence", layers="all"),
    "batch-norm": Method(label="batch norm", batch_norm=True),
    "adareg+batch-norm": Method(label="AdaReg + batch norm", rule="alternating", batch_norm=True),
}


def find(name: str) -> Method:
    """The method of that name, or ``ValueError``."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are: {', '.join(METHODS)}")
    return METHODS[name]


def decov(hidden: Tensor) -> Tensor:  # (…, samples, units) -> (…)
    """``½(‖C‖² − ‖diag C‖²)``, C the covariance of the activations over the batch.

    Cogswell et al., "Reducing Overfitting in Deep Networks by Decorrelating Representations".
    """
    centred = hidden - hidden.mean(-2, keepdim=True)
    C = centred.mT @ centred / hidden.shape[-2]
    diagonal = torch.diagonal(C, dim1=-2, dim2=-1)
    return 0.5 * (C.square().sum((-2, -1)) - diagonal.square().sum(-1))
