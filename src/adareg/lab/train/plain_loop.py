"""One network, trained the ordinary way: a module, ``torch.optim.Adam`` and :class:`adareg.AdaReg`.

Stacks must give what this gives; tests and ``benchmarks/stacking.py`` compare them.
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
from adareg.lab.train.config import Config
from adareg.lab.train.networks import ARCHITECTURES, Dropout, Network
from adareg.lab.train.stacked import Replica


def train(
    replica: Replica, config: Config, x: Tensor, y: Tensor
) -> tuple[Network, adareg.Regularizer | None]:
    """Return the network of a replica after all blocks, and its AdaReg if its method has one.

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
        training.end_epoch(epoch)
    return training.finish()


class Training:
    """A network, its optimizer, and what its method adds to them; arguments as :func:`train`."""

    def __init__(self, replica: Replica, config: Config, x: Tensor, y: Tensor) -> None:
        method, self.seed = replica.recipe, replica.seed
        chosen = draws.subset(len(x), config.n, replica.seed)
        self.config = config = config.without_held_out() if method.holds_out else config
        self._chosen, self._held_out = chosen[: config.n], chosen[config.n :]
        self.x, self._y = x, y
        self.task = "regression" if y.ndim == 2 else "classification"
        self._loss: Callable[..., Tensor] = mse_loss if y.ndim == 2 else cross_entropy
        network = Network(ARCHITECTURES[config.data], replica.seed, **method.network(config))
        self.network = network.to(x.device, x.dtype)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), config.lr, **method.optimizer(config)
        )
        self._best, self._kept = math.inf, self.network.state_dict()
        self.parts = [ingredient.make_part(self) for ingredient in method.ingredients_in(config)]

    def samples(self) -> tuple[Tensor, Tensor]:
        """Return all inputs and targets that the network is trained on."""
        return self.x[self._chosen], self._y[self._chosen]

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Make one step of the optimizer."""
        self.optimizer.zero_grad()
        *hidden, output = self.network.hidden(inputs)
        loss = self._loss(output, targets)
        for part in self.parts:
            if (extra := part.loss(hidden)) is not None:
                loss = loss + extra
        loss.backward()
        for part in self.parts:
            part.add_gradients()
        self.optimizer.step()

    def end_epoch(self, epoch: int) -> None:
        """Let all parts act at the end of an epoch, and of a block if it is one."""
        if (epoch + 1) % self.config.epochs == 0:
            for part in self.parts:
                part.after_block()
        for part in self.parts:
            part.after_epoch(epoch)

    def take_ordinary_dropout(self) -> None:
        """Replace dropout that can be repeated elsewhere by torch's."""
        for i, drop in enumerate(self.network.drop):
            assert isinstance(drop, Dropout)
            self.network.drop[i] = nn.Dropout(drop.rate) if drop.rate else nn.Identity()

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the loss on the held-out samples."""
        self.network.eval()
        loss = self._loss(self.network(self.x[self._held_out]), self._y[self._held_out])
        self.network.train()
        return loss.item()

    def keep_if_best(self, score: float) -> None:
        """Remember the present weights if no score was lower."""
        if score < self._best:
            self._best, self._kept = score, copy.deepcopy(self.network.state_dict())

    def finish(self) -> tuple[Network, adareg.Regularizer | None]:
        """Return the network with the weights it chose, if it chooses, and its AdaReg."""
        if math.isfinite(self._best):
            self.network.load_state_dict(self._kept)
        regularizers = (part.regularizer for part in self.parts)
        return self.network.eval(), next((reg for reg in regularizers if reg is not None), None)

    def epochs(self) -> Iterator[tuple[int, Iterator[tuple[Tensor, Tensor]]]]:
        """Yield every epoch's number and batches, those that a stack gives to this seed."""
        config, first = self.config, 0
        for epoch in range(config.blocks * config.epochs):
            order = self._chosen[draws.order(config.n, self.seed, epoch)].to(self.x.device)
            batches = order.split(config.batch)
            yield epoch, self._load(batches, first)
            first += len(batches)

    def _load(self, batches: tuple[Tensor, ...], first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(batches, first):
            yield self._inputs(batch, step), self._y[batch]

    def _inputs(self, batch: Tensor, step: int) -> Tensor:
        for part in self.parts:
            if (changed := part.inputs(batch, step)) is not None:
                return changed
        return self.x[batch]
