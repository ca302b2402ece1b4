"""Correlations between classes, with intervals."""

import pytest
import torch
from torch import nn

import adareg
from adareg import EvidenceReg
from adareg.core.evidence import update as evidence
from adareg.core.evidence.constants import Constants
from adareg.nn.evidence import correlations
from learning import classes, fit


def test_correlations_have_intervals():
    x, y = classes(2000, wrong=0.3)
    model = nn.Sequential(nn.Linear(8, 5))
    reg = fit(model, x, y, steps=300, every=50)
    found = reg.correlations("0")
    assert found.mean.shape == (5, 5)
    assert (found.low <= found.mean + 1e-6).all()
    assert (found.mean <= found.high + 1e-6).all()
    assert found.mean.diagonal().tolist() == pytest.approx([1] * 5, abs=1e-5)
    weight = model[0].weight.detach()
    estimate = adareg.correlation(weight - weight.mean(0))
    inside = (found.low - 1e-6 <= estimate) & (estimate <= found.high + 1e-6)
    assert inside.all()
    assert (found.high - found.low)[0, 1] < 0.6
    assert torch.equal(reg.correlations("0").low, found.low)
    with pytest.raises(ValueError, match="not a layer that is regularized"):
        reg.correlations("nowhere")
    with pytest.raises(RuntimeError, match="call update"):
        EvidenceReg(model, 9, "classification", layers="last").correlations("0")


def test_correlations_of_a_large_layer_take_fewer_draws(monkeypatch):
    x, y = classes(60)
    model = nn.Sequential(nn.Linear(8, 5))
    reg = fit(model, x, y, steps=50, every=50)
    many = reg.correlations("0")
    drawn = []
    sample = evidence.sample
    monkeypatch.setattr(evidence, "sample", lambda *a: drawn.append(sample(*a)) or drawn[-1])
    monkeypatch.setattr(correlations, "_ENTRIES", 40)
    few = reg.correlations("0")
    assert sum(map(len, drawn)) == 100
    torch.testing.assert_close(few.mean, many.mean, rtol=0, atol=0.2)
    reg.constants = Constants(widest=4)
    with pytest.raises(ValueError, match="0 has 5 rows: correlations are drawn between at most 4"):
        reg.correlations("0")
