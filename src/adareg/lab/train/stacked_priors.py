"""Priors that are learned from a posterior, in a stack: each replica keeps a network of its own.

At an update, which is rare, a replica's weights are copied into its network, the library (or the
peer) does there what it would do for a network trained alone, and the stack takes over the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

import adareg
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.lab.train.marginal_likelihood import MarginalLikelihood
from adareg.lab.train.networks import Architecture, Network
from adareg.nn.evidence import Evidence as Clock

#: The training samples of a replica, inputs and targets.
Samples = Callable[[int], tuple[Tensor, Tensor]]


def workshop(architecture: Architecture, device: torch.device) -> torch.device:
    """Where updates are made: a CPU is many times faster than a GPU at decomposing small matrices.

    Convolutions of hundreds of images are another matter.
    """
    return device if architecture.channels else torch.device("cpu")


class Evidence:
    """AdaReg's evidence rule for some replicas, updated when the library would.

    Args:
        members: their places in the stack.
        networks: one for each, to work on.
        layers: which layers.
        n: training samples.
        task: "classification" or "regression".
    """

    def __init__(
        self, members: Sequence[int], networks: Sequence[Network], layers: str, n: int, task: str
    ) -> None:
        self.members, self._networks = members, networks
        self._regularizers = [
            adareg.AdaReg(network, layers, rule="evidence", n_samples=n, likelihood=task)
            for network in networks
        ]
        self._clock = Clock(n, task)

    def is_due(self, step: int) -> bool:
        """Whether this many steps are followed by an update."""
        return self._clock.is_due(step, None)

    def update(self, weights: dict[str, Tensor], samples: Samples) -> None:
        """New priors for all members whose weights and outputs are finite."""
        own = _taken(weights, self.members, self._networks[0])
        for at, (network, reg) in enumerate(zip(self._networks, self._regularizers, strict=True)):
            load(network, own, at)
            if _is_finite(network):  # else the old prior stays; the record says that it diverged
                with suppress(adareg.NonFiniteError):
                    reg.update(*_moved(samples(self.members[at]), network))

    @property
    def strengths(self) -> list[float]:
        """λ of each member."""
        return [reg.strength for reg in self._regularizers]

    @property
    def noises(self) -> list[float]:
        """σ² of each member."""
        return [reg.metrics().get("noise", 1.0) for reg in self._regularizers]

    def priors(self) -> dict[str, MatrixNormal]:
        """The priors of all members, stacked, by layer."""
        each = [reg.priors for reg in self._regularizers]
        return {layer: _stacked([priors[layer] for priors in each]) for layer in each[0]}


class Peers:
    """The peer's prior for some replicas; arguments as for :class:`Evidence`."""

    def __init__(
        self, members: Sequence[int], networks: Sequence[Network], layers: str, n: int, task: str
    ) -> None:
        assert layers == "all"
        self.members, self._networks = members, networks
        self._learners = [MarginalLikelihood(network, n, task) for network in networks]
        self.scores = [math.inf] * len(members)

    def update(self, weights: dict[str, Tensor], samples: Samples) -> None:
        """New precisions for all members whose weights are finite."""
        own = _taken(weights, self.members, self._networks[0])
        for at, (network, learner) in enumerate(zip(self._networks, self._learners, strict=True)):
            load(network, own, at)
            self.scores[at] = learner.update(*_moved(samples(self.members[at]), network))

    @property
    def noises(self) -> list[float]:
        """σ² of each member."""
        return [learner.noise for learner in self._learners]

    def decays(self) -> Tensor:  # (members, parameters)
        """What each member's parameter tensors are multiplied by in the loss's gradient."""
        return torch.stack([learner.decay for learner in self._learners])


def _taken(weights: dict[str, Tensor], members: Sequence[int], like: Network) -> dict[str, Tensor]:
    """The weights of all members, where their networks are."""
    device = next(like.parameters()).device
    return {name: each.detach()[members].to(device) for name, each in weights.items()}


def _moved(samples: tuple[Tensor, Tensor], like: Network) -> tuple[Tensor, Tensor]:
    device = next(like.parameters()).device
    return samples[0].to(device), samples[1].to(device)


@torch.no_grad()
def load(network: Network, weights: dict[str, Tensor], i: int) -> None:
    """Copy a replica's weights."""
    for name, parameter in network.named_parameters():
        parameter.copy_(weights[name][i])


def _is_finite(network: Network) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in network.parameters())


def _stacked(priors: Sequence[MatrixNormal]) -> MatrixNormal:
    row, col = ([getattr(prior, side) for prior in priors] for side in ("row", "col"))
    return MatrixNormal(_alike(row), _alike(col))


def _alike(precisions: Sequence[Precision]) -> Precision:
    """A stack; with all eigenvectors where some have a prior of another rank than others."""
    if len({(p.scale is None, p.basis.shape) for p in precisions}) == 1:
        return Precision.stack(precisions)
    spectra = [precision.eigenvectors() for precision in precisions]
    return Precision.stack([Precision(None, Q, e) for e, Q in spectra])
