"""Concrete dropout, a competitor: rates learned by gradient (Gal, Hron and Kendall, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Of the relaxed masks, and of the prior's length scale, as the authors' code has them.
TEMPERATURE, LENGTH_SCALE = 0.1, 1e-4


class ConcreteLinear(nn.Linear):
    """A linear layer whose inputs have dropout at a rate that is a parameter."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.logit = nn.Parameter(torch.tensor(0.1).logit())

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by relaxed masks while training."""
        if self.training:
            u = torch.rand_like(x).clamp(1e-6, 1 - 1e-6).logit()
            x = x * (-(self.logit + u) / TEMPERATURE).sigmoid() / (-self.logit).sigmoid()
        return super().forward(x)

    def penalty(self, n: int) -> Tensor:
        """Return what the layer adds to the mean loss over n samples."""
        p = self.logit.sigmoid()
        entropy = -(p * p.log() + (1 - p) * (1 - p).log())
        weights = self.weight.square().sum() / (1 - p)
        return (LENGTH_SCALE**2 * weights - self.in_features * entropy) / n


def concrete(model: nn.Sequential) -> nn.Sequential:
    """Return the network with concrete dropout before every linear layer; weights are shared."""
    parts = list(model)
    for at, part in enumerate(parts):
        if isinstance(part, nn.Linear):
            parts[at] = ConcreteLinear(part.in_features, part.out_features)
            parts[at].weight, parts[at].bias = part.weight, part.bias
    return nn.Sequential(*parts)


def penalty(model: nn.Module, n: int) -> Tensor | float:
    """Return what all layers add to the loss."""
    return sum(x.penalty(n) for x in model.modules() if isinstance(x, ConcreteLinear))
