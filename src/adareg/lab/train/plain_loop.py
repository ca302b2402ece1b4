"""One network, trained the ordinary way: a module, ``torch.optim.Adam`` and :class:`adareg.AdaReg`.

The engine's stacks must give what this gives; tests and ``benchmarks/stacking.py`` compare them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import adareg
from adareg.lab.train import draws
from adareg.lab.train.augmentation import crop_and_flip, pad_images
from adareg.lab.train.config import Config
from adareg.lab.train.marginal_likelihood import MarginalLikelihood
from adareg.lab.train.methods import decov
from adareg.lab.train.networks import ARCHITECTURES, Dropout, Network
from adareg.lab.train.stacked import CHECKS, Replica


def train(
    replica: Replica, config: Config, x: Tensor, y: Tensor
) -> tuple[Network, adareg.AdaReg | None]:
    """The network of a replica after all blocks, and its AdaReg if its method has one.

    Args:
        replica: method and seed.
        config: the cell.
        x: all training samples, (N, features) or (N, channels, height, width).
        y: labels (N,) or targets (N, tasks).
    """
    training = Training(replica, config, x, y)
    for epoch, batches in training.epochs():
        for batch in batches:
            training.step(*batch)
        if (epoch + 1) % training.config.epochs == 0:
            training.update()
        if training.is_checked(epoch):
            training.check()
    return training.finish()


class Training:
    """A network, its optimizer, and what its method adds to them; arguments as :func:`train`."""

    def __init__(self, replica: Replica, config: Config, x: Tensor, y: Tensor) -> None:
        self.method, self._seed = replica.recipe, replica.seed
        self._strengths = self.method.strengths(config)
        chosen = draws.subset(len(x), config.n, replica.seed)
        self.config = config.without_held_out() if self.method.stop_early else config
        self._chosen, self._held_out = chosen[: self.config.n], chosen[self.config.n :]
        self._x, self._y = x, y
        self._loss: Callable[..., Tensor] = mse_loss if y.ndim == 2 else cross_entropy
        self.network = Network(
            ARCHITECTURES[config.data],
            replica.seed,
            self.method.batch_norm,
            self._strengths.dropout,
        ).to(x.device, x.dtype)
        self._optimizer = torch.optim.Adam(
            self.network.parameters(), config.lr, weight_decay=self._strengths.weight_decay
        )
        self.task = "regression" if y.ndim == 2 else "classification"
        self._peer = None
        if self.method.rule == "marginal-likelihood":
            self._peer = MarginalLikelihood(self.network, self.config.n, self.task)
        self.reg = self._regularizer()
        self._best, self._kept = math.inf, self.network.state_dict()

    def _regularizer(self) -> adareg.AdaReg | None:
        method, config = self.method, self.config
        if method.rule is None or self._peer is not None:
            return None
        if method.rule == "evidence":
            reg = adareg.AdaReg(
                self.network,
                method.layers,
                rule="evidence",
                n_samples=config.n,
                likelihood=self.task,
            )
            reg.attach(self._optimizer, data=self._samples())
            return reg
        strength = self._strengths.adareg
        reg = adareg.AdaReg(self.network, method.layers, strength, config.bounds, method.rule)
        reg.attach(self._optimizer)
        return reg

    def _samples(self) -> tuple[Tensor, Tensor]:
        return self._x[self._chosen], self._y[self._chosen]

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """One step of the optimizer."""
        self._optimizer.zero_grad()
        *hidden, output = self.network.hidden(inputs)
        loss = self._loss(output, targets)
        if self._strengths.decov > 0:
            loss = loss + self._strengths.decov * sum(decov(h) for h in hidden)
        loss.backward()
        if self._peer is not None:
            self._peer.add_gradients()
        self._optimizer.step()

    def update(self) -> None:
        """What happens after a block; the evidence rule has its own times, in ``step``."""
        if self._peer is not None:
            self._keep(self._peer.update(*self._samples()))
        elif self.reg is not None and self.method.rule != "evidence":
            self.reg.update()

    def take_ordinary_dropout(self) -> None:
        """Replace dropout that can be repeated elsewhere by torch's."""
        rate = self._strengths.dropout
        for i, drop in enumerate(self.network.drop):
            assert isinstance(drop, Dropout)
            self.network.drop[i] = nn.Dropout(rate) if drop.rate else nn.Identity()

    def update_evidence(self) -> None:
        """An update of the evidence rule out of turn, to time it."""
        assert self.reg is not None
        self.reg.update(*self._samples())

    def is_checked(self, epoch: int) -> bool:
        """Whether early stopping looks at its held-out samples after an epoch."""
        every = -(-self.config.blocks * self.config.epochs // CHECKS)
        return self.method.stop_early and (epoch + 1) % every == 0

    @torch.no_grad()
    def check(self) -> None:
        """Early stopping: keep the weights if they are the best so far."""
        self.network.eval()
        loss = self._loss(self.network(self._x[self._held_out]), self._y[self._held_out])
        self.network.train()
        self._keep(loss.item())

    def _keep(self, score: float) -> None:
        if score < self._best:
            self._best, self._kept = score, copy.deepcopy(self.network.state_dict())

    def finish(self) -> tuple[Network, adareg.AdaReg | None]:
        """The network with the weights it chose, if it chooses, and its AdaReg."""
        if math.isfinite(self._best):
            self.network.load_state_dict(self._kept)
        return self.network.eval(), self.reg

    def epochs(self) -> Iterator[tuple[int, Iterator[tuple[Tensor, Tensor]]]]:
        """Every epoch's number and batches, those that the engine gives to this seed."""
        config, first = self.config, 0
        for epoch in range(config.blocks * config.epochs):
            order = self._chosen[draws.order(config.n, self._seed, epoch)].to(self._x.device)
            batches = order.split(config.batch)
            yield epoch, self._load(batches, first)
            first += len(batches)

    def _load(self, batches: tuple[Tensor, ...], first: int) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self._x, self._y
        if not self.config.augment:
            yield from ((x[batch], y[batch]) for batch in batches)
            return
        padded = pad_images(x.permute(0, 2, 3, 1))
        seeds = torch.tensor([self._seed], device=x.device)
        for step, batch in enumerate(batches, first):
            at = torch.tensor(step, device=x.device)
            images = crop_and_flip(padded, batch[None], seeds, at)[0]
            yield images.permute(0, 3, 1, 2), y[batch]
