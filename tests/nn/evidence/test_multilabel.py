"""Several labels of a sample, in a training loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import adareg


def test_labels_that_belong_together_correlate_and_the_penalty_is_the_map_one() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    labels = torch.stack([x[:, 0] > 0, x[:, 0] > 0.3, x[:, 1] > 0], 1).float()
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    reg = adareg.EvidenceReg(model, 200, "multilabel")
    reg.attach(optimizer, data=(x, labels))
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x), labels).backward()
        optimizer.step()
    found = reg.correlations("0").mean
    assert found[0, 1] > 0.7 > found[0, 2].abs()
    # BCEWithLogitsLoss is the mean over three labels: λ = 1/(2·n·3).
    assert reg.strength == pytest.approx(1 / 1200)
    assert reg.metrics()["noise"] == 1
