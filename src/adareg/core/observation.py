"""What is known at the outputs of a network: residuals, curvature, noise; whether it has learned.

The noise φ is a variance in regression. In classification it is the dispersion, 1 where labels are
as uncertain as the model says.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LIKELIHOODS = ("classification", "regression")

#: The dispersion that a classifier starts from, and its range.
DISPERSION, DISPERSIONS = 0.3, (0.3, 10.0)

#: Noise is at least this share of the targets' variance, and at most all of it.
LEAST_NOISE = 1e-6

#: A leverage above this is taken as this: a sample keeps a say in the noise.
MOST_LEVERAGE = 0.98

#: A network whose squared residuals are more than this share of those of the best constant
#: prediction has learned nothing yet.
LEARNED = 0.99


class Outputs(NamedTuple):
    """What the likelihood says at m samples, each value (…, m)."""

    stiffness: Tensor  # curvature in each of a sample's effective directions
    directions: Tensor  # how many there are
    expected: Tensor  # the squared residual that the model expects, at noise one
    actual: Tensor | None  # the squared residual there is
    log_likelihood: Tensor | None  # at noise one, without constants
    constants: int  # how many times −½·log(2πφ) is missing in it
    unlearned: Tensor | None  # (…): the mean squared residual of the best constant prediction


def classify(logits: Tensor, labels: Tensor | None) -> Outputs:  # (…, m, K), (…, m)
    """Of a softmax, or for K = 1 a logistic function.

    The curvature ``Λ = diag(p) − ppᵀ`` has K − 1 directions for an open question, one if two
    classes are in doubt: the participation ratio ``tr(Λ)²/tr(Λ²)``. A label's squared distance
    from p has the expectation tr(Λ).
    """
    o = logits.double()
    log_p = (
        torch.nn.functional.logsigmoid(torch.cat([o, -o], -1))
        if o.shape[-1] == 1
        else (o.log_softmax(-1))
    )
    p = log_p.exp()
    second = p.square().sum(-1)
    trace = (1 - second).clamp(min=1e-12)
    squares = (second - 2 * p.pow(3).sum(-1) + second.square()).clamp(min=1e-24)
    count = (trace.square() / squares).clamp(1, max(1, p.shape[-1] - 1))
    if labels is None:
        return Outputs(trace / count, count, trace, None, None, 0, None)
    of_label = (1 - labels if o.shape[-1] == 1 else labels).long().unsqueeze(-1)
    p_label = p.gather(-1, of_label).squeeze(-1)
    residual = (second - 2 * p_label + 1).clamp(min=0)
    log_likelihood = log_p.gather(-1, of_label).squeeze(-1)
    each = torch.nn.functional.one_hot(of_label.squeeze(-1), p.shape[-1]).double()
    unlearned = 1 - each.mean(-2).square().sum(-1)
    return Outputs(trace / count, count, trace, residual, log_likelihood, 0, unlearned)


def regress(outputs: Tensor, targets: Tensor) -> Outputs:  # (…, m, K), (…, m, K)
    """Of independent Gaussian noise."""
    residual = (outputs.double() - targets.double()).square().sum(-1)
    ones = torch.ones_like(residual)
    K = outputs.shape[-1]
    unlearned = targets.double().var(-2, correction=0).sum(-1)
    return Outputs(ones, K * ones, K * ones, residual, -residual / 2, K, unlearned)


def has_learned(outputs: Outputs) -> Tensor:  # (…)
    """Whether the network knows more of its samples than one prediction for all would say.

    True where that says everything, and where there are no targets to tell.
    """
    if outputs.actual is None or outputs.unlearned is None:
        return torch.ones(outputs.stiffness.shape[:-1], dtype=torch.bool)
    unlearned = outputs.unlearned
    return (outputs.actual.mean(-1) < LEARNED * unlearned) | (unlearned <= 0)


def log_likelihood(outputs: Outputs, noise: Tensor) -> Tensor:  # (…)
    """Of a sample, in the mean; NaN without targets."""
    if outputs.log_likelihood is None:
        return torch.full_like(noise, math.nan)
    constant = outputs.constants * (2 * math.pi * noise).log() / 2
    return outputs.log_likelihood.mean(-1) / noise - constant


def estimate_noise(noise: Tensor, outputs: Outputs, leverage: Tensor) -> Tensor:
    """Generalised cross-validation: residuals as they would be at samples left out.

    The actual squared residual over the expected one, divided by ``(1 − γ/N)²``; with it the
    noise does not vanish when a network fits its training data exactly. As it was, without
    targets.
    """
    if outputs.actual is None:
        return noise
    fit = outputs.actual.sum(-1) / outputs.expected.sum(-1)
    return fit / (1 - leverage.clamp(max=MOST_LEVERAGE)).square()
