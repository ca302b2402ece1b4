"""What ``rule="evidence"`` needs of an estimator: its likelihood, and data for the updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adareg.nn.evidence.regularizer import EvidenceReg
from adareg.nn.select import Selection
from adareg.sklearn._data import Samples
from adareg.sklearn._network import layer_units
from adareg.sklearn._parameters import Parameters

RULE = "evidence"

_OTHERS = "use another rule, or strength=None for no prior"


def is_chosen(settings: Parameters) -> bool:
    """Whether there is to be a prior, and it is this rule's."""
    return bool(settings.strength) and settings.rule == RULE


def check(output: str, outputs: int, sample_weight: Any) -> None:
    """Refuse a loss or weights for which the rule has no likelihood.

    Args:
        output: the last layer's activation, a key of ``OUTPUTS``.
        outputs: how many there are.
        sample_weight: what ``fit`` was given.
    """
    if output == "exp":
        raise ValueError(
            f"loss='poisson' with rule='evidence': expected loss='squared_error'; {_OTHERS}"
        )
    if output == "logistic" and outputs > 1:
        raise ValueError(
            f"multi-label targets ({outputs} labels) with rule='evidence': expected one class "
            f"for each sample; {_OTHERS}"
        )
    if sample_weight is not None:
        raise ValueError(
            "sample_weight with rule='evidence': expected None, since the rule counts samples "
            f"and a weight does not say for how many one stands; repeat rows, {_OTHERS}"
        )


def make(model: nn.Sequential, layers: Selection, output: str, n_samples: int) -> EvidenceReg:
    """Return a regularizer that fits the loss whose gradient the solvers follow.

    That is the mean cross-entropy, or half the squared error, summed over targets and averaged
    over samples.
    """
    if output != "identity":
        return EvidenceReg(model, n_samples, "classification", layers)
    return EvidenceReg(model, n_samples, "regression", layers, layer_units(model)[-1] / 2)


def go_on(new: EvidenceReg, old: EvidenceReg) -> None:
    """Take over all that the old regularizer has learned, but for the number of samples."""
    new.load_state_dict({**old.state_dict(), "n_samples": new.n_samples})


def do_not_wait(reg: EvidenceReg) -> None:
    """Have the penalty from the start, for L-BFGS.

    It follows loss and penalty in their true proportion, however small the gradients are; and
    until the first update, without a penalty, it would run far where classes can be separated.
    """
    reg.waiting = False


def batch(reg: EvidenceReg, samples: Samples) -> tuple[Tensor, Tensor]:
    """Return inputs, and labels or targets, for an update. Each update draws anew."""
    draws = torch.Generator().manual_seed(reg.updates)
    index = torch.randperm(len(samples), generator=draws)[: reg.constants.samples]
    x, y = samples.tensors(index.numpy())
    one_hot = reg.likelihood.name == "classification" and y.shape[1] > 1
    return x, y.argmax(1) if one_hot else y
