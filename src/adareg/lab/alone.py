"""One network, trained the ordinary way: a module, ``torch.optim.Adam`` and :class:`adareg.AdaReg`.

The engine's stacks must give what this gives; tests and ``benchmarks/stacking.py`` compare them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

import adareg
from adareg.lab import random
from adareg.lab.config import Config
from adareg.lab.engine import Replica, crop_and_flip, pad_images
from adareg.lab.methods import METHODS, decov
from adareg.lab.models import ARCHITECTURES, Network


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
    method = METHODS[replica.method]
    strengths = method.strengths(config)
    network = Network(
        ARCHITECTURES[config.data], replica.seed, method.batch_norm, strengths.dropout
    )
    network.to(x.device, x.dtype)
    optimizer = torch.optim.Adam(
        network.parameters(), config.lr, weight_decay=strengths.weight_decay
    )
    reg = None
    if method.rule is not None:
        reg = adareg.AdaReg(network, method.layers, strengths.adareg, config.bounds, method.rule)
        reg.attach(optimizer)
    for epoch, batches in _epochs(replica.seed, config, x, y):
        for inputs, targets in batches:
            optimizer.zero_grad()
            *hidden, output = network.hidden(inputs)
            loss = mse_loss(output, targets) if y.ndim == 2 else cross_entropy(output, targets)
            if strengths.decov > 0:
                loss = loss + strengths.decov * sum(decov(h) for h in hidden)
            loss.backward()
            optimizer.step()
        if reg is not None and (epoch + 1) % config.epochs == 0:
            reg.update()
    return network.eval(), reg


def _epochs(
    seed: int, config: Config, x: Tensor, y: Tensor
) -> Iterator[tuple[int, Iterator[tuple[Tensor, Tensor]]]]:
    """Every epoch's number and batches, those that the engine gives to a replica of this seed."""
    chosen = random.subset(len(x), config.n, seed)
    first = 0
    for epoch in range(config.blocks * config.epochs):
        order = chosen[random.order(config.n, seed, epoch)].to(x.device)
        batches = order.split(config.batch)
        yield epoch, _load(seed, config, x, y, batches, first)
        first += len(batches)


def _load(
    seed: int, config: Config, x: Tensor, y: Tensor, batches: tuple[Tensor, ...], first: int
) -> Iterator[tuple[Tensor, Tensor]]:
    if not config.augment:
        yield from ((x[batch], y[batch]) for batch in batches)
        return
    padded, seeds = pad_images(x.permute(0, 2, 3, 1)), torch.tensor([seed], device=x.device)
    for step, batch in enumerate(batches, first):
        images = crop_and_flip(padded, batch[None], seeds, torch.tensor(step, device=x.device))[0]
        yield images.permute(0, 3, 1, 2), y[batch]
