"""Networks, data and a loop for tests of EvidenceReg."""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from adareg import EvidenceReg


def mlp(inputs=8, outputs=5, width=16, dtype=torch.float32):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)).to(dtype)


def classes(n=40, inputs=8, outputs=5, wrong=0.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, inputs, generator=generator)
    y = x[:, :outputs].argmax(1)
    flip = torch.rand(n, generator=generator) < wrong
    return x, torch.where(flip, torch.randint(outputs, (n,), generator=generator), y)


def fit(model, x, y, make=lambda p: Adam(p, 1e-2), steps=60, every=10, loss=cross_entropy):
    likelihood = "classification" if loss is cross_entropy else "regression"
    reg = EvidenceReg(model, len(x), likelihood)
    optimizer = make(model.parameters())
    handle = reg.attach(optimizer, update_every=every, data=(x, y))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x).float(), y).backward()
        optimizer.step()
    handle.remove()
    return reg


def assert_sound(reg, model):
    metrics = reg.metrics()
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert all(p.isfinite().all() for p in model.parameters())
    assert metrics["updates"] > 0
    assert 0 <= metrics["leverage"] <= 1


def deep(layers):
    hidden = [part for _ in range(layers - 2) for part in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *hidden, nn.Linear(16, 5))
