"""Trainings that a test launches with torchrun; run alone they are the reference."""

import hashlib
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import adareg
from adareg import AdaReg
from adareg.core.linalg import local, whole

STEPS, SAMPLES = 6, 16
DEVICE = os.environ.get("ADAREG_TEST_DEVICE", "cpu")


def make_model():
    """Layers that are tall, wide, square, and fewer rows than there are ranks."""
    model = nn.Sequential(
        nn.Linear(6, 18), nn.Tanh(), nn.Linear(18, 18), nn.Tanh(), nn.Linear(18, 8), nn.Linear(8, 3)
    ).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator).double())
    return model.to(DEVICE)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 6, generator=generator).double().to(DEVICE)
    return x, x[:, :3].sin()


def rank_and_size():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def mean(value):
    """Over all ranks."""
    value = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(value)
    return value.item() / rank_and_size()[1]


@adareg.register_rule("rows of jobs")
def rows(W, prior, bounds):
    """A rule from outside: the rows' precision alone."""
    row = yield from adareg.solve_side(W, prior.col, W.shape[-1], bounds)
    return adareg.MatrixNormal(row, prior.col)


def make_reg(model, rule):
    return AdaReg(model, layers="all", strength=1e-3, bounds=(1e-2, 1e2), rule=rule)


class Training:
    """A loop as a user writes it.

    Args:
        how: ``"coupled"``, ``"proximal"``, or ``"loss"``: how the penalty gets in.
        parts: how many parts a batch is accumulated from.
        first: whether penalty or loss is computed first.
        share: the index of this rank's share of a global batch, and how many there are.
    """

    def __init__(self, model, how="coupled", rule="joint", parts=1, first="loss", share=None):
        self.model, self.how, self.parts, self.first = model, how, parts, first
        self.share = share or rank_and_size()
        self.optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        self.reg = make_reg(model, rule)
        if how != "loss":
            self.reg.attach(self.optimizer, how, update_every=2)
        self.losses = []

    def step(self, i):
        index, count = self.share
        x, y = (samples.chunk(count)[index].chunk(self.parts) for samples in batch(i))
        total = 0.0
        self.optimizer.zero_grad()
        pieces = list(zip(x, y, strict=True))
        for j, (x, y) in enumerate(pieces):
            with self._sync(j == self.parts - 1):
                before = self.penalty() if self.first == "penalty" else 0.0
                loss = mse_loss(self.model(x), y) / self.parts
                after = self.penalty() if self.first == "loss" else 0.0
                (before + loss + after).backward()
            total += mean(loss)
        self.optimizer.step()
        if self.how == "loss" and i % 2:
            self.reg.update()
        self.losses.append(total)

    def penalty(self):
        return self.reg.penalty() / self.parts if self.how == "loss" else 0.0

    def _sync(self, last):
        if isinstance(self.model, DistributedDataParallel):
            return nullcontext() if last else self.model.no_sync()
        if hasattr(self.model, "set_requires_gradient_sync"):
            self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def run(self, steps=range(STEPS)):
        for i in steps:
            self.step(i)
        return self

    def outcome(self):
        """Losses, weights, precisions and metrics, whole."""
        weights = [whole(p.detach()) for p in self.model.parameters()]
        priors = {name: prior.apply(whole) for name, prior in self.reg.priors.items()}
        dense = {n: (prior.row.dense(), prior.col.dense()) for n, prior in priors.items()}
        return self.losses, weights, dense, self.reg.metrics(), self.reg.penalty().detach()


def fingerprints(training, with_weights=True):
    """What must be the same to the last bit on every rank, as one string."""
    digest = hashlib.sha256()
    tensors = list(training.model.parameters()) if with_weights else []
    for prior in training.reg.priors.values():
        tensors += [f for f in (*prior.row.factors, *prior.col.factors) if f is not None]
    for tensor in tensors:
        digest.update(whole(tensor.detach()).contiguous().cpu().numpy().tobytes())
        digest.update(str(local(tensor).stride()).encode() if tensor is local(tensor) else b"")
    return digest.hexdigest()


def assert_alike(found, expected, tolerance=1e-10):
    """The same numbers; those of a matrix are measured by its largest."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other, tolerance)
        return
    found, expected = torch.as_tensor(found).cpu(), torch.as_tensor(expected).cpu()
    distance = (found - expected).abs().max().item()
    assert distance <= tolerance * max(1.0, expected.abs().max().item()), distance
