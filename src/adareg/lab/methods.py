"""Every way of regularizing that is compared: one table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Method:
    """Which ingredients are on; their strengths are the experiment's (see ``config.Config``).

    Args:
        label: what readers see.
        rule: AdaReg's rule, or None for no AdaReg.
        layers: which layers AdaReg regularizes.
    """

    label: str
    weight_decay: bool = False
    dropout: bool = False
    batch_norm: bool = False
    decov: bool = False
    rule: str | None = None
    layers: str = "last"


#: One place to add another.
METHODS: dict[str, Method] = {
    "none": Method(label="none"),
    "weight-decay": Method(label="weight decay", weight_decay=True),
    "dropout": Method(label="dropout", dropout=True),
    "batch-norm": Method(label="batch norm", batch_norm=True),
    "decov": Method(label="DeCov", decov=True),
    "adareg": Method(label="AdaReg", rule="alternating"),
    "adareg-joint": Method(label="AdaReg, joint rule", rule="joint"),
    "adareg-official": Method(label="AdaReg, authors' rule", rule="official"),
    "adareg-fc": Method(label="AdaReg, fully connected", rule="alternating", layers="fc"),
    "adareg-conv": Method(label="AdaReg, convolutions", rule="alternating", layers="conv"),
    "adareg-all": Method(label="AdaReg, all layers", rule="alternating", layers="all"),
    "adareg+batch-norm": Method(label="AdaReg + batch norm", rule="alternating", batch_norm=True),
    "adareg+dropout": Method(label="AdaReg + dropout", rule="alternating", dropout=True),
    "adareg+weight-decay": Method(
        label="AdaReg + weight decay (authors' code)", rule="official", weight_decay=True
    ),
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
