"""What is learned in trainings of many kinds."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW

from adareg import EvidenceReg
from adareg.core.evidence.likelihood import LIKELIHOODS
from learning import assert_sound, classes, deep, fit, mlp
from training import train


@pytest.mark.filterwarnings("ignore:after 10 updates the network predicts no better")
def test_log_evidence_prefers_the_model_that_made_the_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    y = x[:, :1] + 0.3 * torch.randn(200, 1, generator=generator)
    found = {}
    for name, columns in (("right", slice(0, 4)), ("wrong", slice(4, 8))):
        model = nn.Linear(4, 1)
        reg = fit(model, x[:, columns], y, steps=200, every=20, loss=mse_loss)
        found[name] = reg.metrics()["log_evidence"]
    assert found["right"] > found["wrong"] + 50


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_penalty_waits_until_something_is_learned_and_then_stays(likelihood):
    x, labels = classes()
    targets = nn.functional.one_hot(labels).float()
    y = labels if likelihood == "classification" else targets
    model = nn.Linear(8, 5)
    reg = EvidenceReg(model, 40, likelihood)
    solution = torch.linalg.lstsq(x, targets - targets.mean(0)).solution.mT
    share = targets.mean(0)
    links = {"classification": share.log(), "multilabel": share.logit(), "counts": share.log()}
    nothing = links.get(likelihood, share)
    waiting = []
    for known in (0.0, 0.001, 1.0, 0.0):  # a share of what can be known by a linear map
        with torch.no_grad():
            model.weight.copy_(known * solution)
            model.bias.copy_(nothing)
        reg.update(x, y)
        waiting.append(reg.metrics()["waiting"])
        assert (reg.strength == 0) == bool(waiting[-1])
    assert waiting == [1, 1, 0, 0]


def test_a_deep_network_is_not_shrunk_before_it_has_learned_anything():
    """Its gradients are so small at first that Adam would follow any penalty."""
    x, y = classes(60)
    sizes = []
    for regularized in (False, True):
        torch.manual_seed(0)
        model = deep(16)
        optimizer = Adam(model.parameters(), 1e-3)
        if regularized:
            reg = EvidenceReg(model, 60, "classification")
            reg.attach(optimizer, data=(x, y))
        train(model, optimizer, 120, (x, y))
        sizes.append([p.norm() for p in model.parameters() if p.ndim == 2])
    assert reg.metrics()["updates"] > 2
    assert reg.metrics()["waiting"] == 1
    torch.testing.assert_close(*sizes, rtol=1e-6, atol=0)


CASES = {
    "ten samples": lambda: (mlp(), *classes(10)),
    "more samples than are looked at": lambda: (mlp(), *classes(1000)),
    "one layer": lambda: (nn.Sequential(nn.Linear(8, 5)), *classes()),
    "fifty layers": lambda: (deep(50), *classes(20)),
    "batch norm": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)),
        *classes(),
    ),
    "dropout": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5)),
        *classes(),
    ),
    "duplicated data": lambda: (mlp(), *(t.repeat_interleave(10, 0) for t in classes(5))),
    "constant features": lambda: (mlp(), torch.ones(40, 8), classes()[1]),
    "zero features": lambda: (mlp(), torch.zeros(40, 8), classes()[1]),
    "missing classes": lambda: (mlp(), classes()[0], torch.zeros(40, dtype=torch.long)),
    "wrong labels": lambda: (mlp(), *classes(40, wrong=0.5)),
    "huge inputs": lambda: (mlp(), 1e4 * classes()[0], classes()[1]),
    "bfloat16": lambda: (mlp(dtype=torch.bfloat16), classes()[0].bfloat16(), classes()[1]),
    "float64": lambda: (mlp(dtype=torch.float64), classes()[0].double(), classes()[1]),
}


@pytest.mark.parametrize("case", CASES)
def test_robust(case, one_thread):
    model, x, y = CASES[case]()
    assert_sound(fit(model, x, y, steps=40), model)


@pytest.mark.parametrize(
    "make",
    [lambda p: AdamW(p, 1e-2), lambda p: SGD(p, 0.1, momentum=0.9)],
    ids=["AdamW", "SGD"],
)
def test_optimizers(make):
    x, y = classes(80)
    model = mlp()
    reg = fit(model, x, y, make, steps=150)
    assert_sound(reg, model)
    assert (model(x).argmax(1) == y).float().mean() > 0.8


@pytest.mark.parametrize(
    "y", [torch.zeros(30, 2), torch.ones(30, 2), None], ids=["zeros", "ones", "line"]
)
def test_regression_without_noise_or_signal(y, one_thread):
    x = torch.randn(30, 8)
    targets = x[:, :2] * 3 if y is None else y
    model = mlp(outputs=2)
    assert_sound(fit(model, x, targets, steps=100, loss=mse_loss), model)


@pytest.mark.parametrize("case", ["unscaled inputs", "one value"])
def test_regression_whose_kernel_is_huge(case):
    """More samples than features, so that it is singular as well."""
    x = torch.randn(40, 8)
    if case == "unscaled inputs":
        x[:, 0] = 1.7e9 + 1e5 * x[:, 0]
    y = torch.ones(40, 1) if case == "one value" else torch.randn(40, 1)
    model = nn.Linear(8, 1)
    assert_sound(fit(model, x, y, lambda p: Adam(p, 1e-9), loss=mse_loss), model)


def test_does_not_fade_when_the_data_can_be_fitted_exactly(one_thread):
    """Sixty samples of a line with as much noise as signal: plain training ends at their noise."""
    errors = {}
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1060, 10, generator=generator)
    y = x[:, :1] + torch.randn(1060, 1, generator=generator)
    for name in ("none", "evidence"):
        torch.manual_seed(0)
        model = mlp(10, 1, 64)
        if name == "evidence":
            reg = fit(model, x[:60], y[:60], lambda p: Adam(p, 3e-3), 600, 40, mse_loss)
            assert 0.3 < reg.metrics()["noise"] < 2
        else:
            optimizer = Adam(model.parameters(), 3e-3)
            for _ in range(600):
                optimizer.zero_grad()
                mse_loss(model(x[:60]), y[:60]).backward()
                optimizer.step()
        errors[name] = mse_loss(model(x[60:]), y[60:]).item()
    assert errors["evidence"] < 0.75 * errors["none"]


def test_dispersion_tells_wrong_labels_from_right_ones(one_thread):
    noise = [
        fit(mlp(), *classes(200, wrong=wrong), steps=200, every=20).metrics()["noise"]
        for wrong in (0.0, 0.5)
    ]
    assert noise[1] > 2 * noise[0]


UNITS = {
    "inputs": (2.0**12, 1),
    "small inputs": (2.0**-12, 1),
    "targets": (1, 2.0**14),
    "small targets": (1, 2.0**-14),
    "both": (2.0**-8, 2.0**10),
}


def train_in_units(a, b, make, power, x, y):
    """Train in units 1/a of the inputs and 1/b of the targets; return predictions in old units.

    Weights start alike but for units, and so does every step: SGD's is a gradient, in units of the
    loss over the weight's; Adam's has none.
    """
    torch.manual_seed(0)
    model = mlp(8, 2).double()
    units = {"0.weight": 1 / a, "0.bias": 1.0, "2.weight": b, "2.bias": b}
    groups = []
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(units[name])
            rate = units[name] ** 2 / b**2 if power == 2 else units[name]
            groups.append({"params": [p], "lr": 0.01 * rate})
    optimizer = make(groups)
    reg = EvidenceReg(model, len(x), "regression")
    reg.attach(optimizer, update_every=30, data=(a * x, b * y))
    for _ in range(150):
        optimizer.zero_grad()
        mse_loss(model(a * x), b * y).backward()
        optimizer.step()
    return model(a * x).detach() / b, reg.metrics()


@pytest.mark.parametrize(
    ("make", "power"),
    [(lambda g: SGD(g, momentum=0.5), 2), (lambda g: Adam(g, eps=0), 1)],
    ids=["SGD", "Adam"],
)
@pytest.mark.parametrize("units", UNITS)
def test_units_of_inputs_and_targets_do_not_matter(units, make, power, one_thread):
    x, _ = classes(60)
    y = (x[:, :2] + 0.5 * torch.randn(60, 2)).double()
    (a, b), usual = UNITS[units], train_in_units(1, 1, make, power, x.double(), y)
    found, metrics = train_in_units(a, b, make, power, x.double(), y)
    torch.testing.assert_close(found, usual[0], rtol=1e-6, atol=1e-6)
    assert metrics["noise"] / b**2 == pytest.approx(usual[1]["noise"], rel=1e-6)
    assert metrics["gamma"] == pytest.approx(usual[1]["gamma"], rel=1e-6)
    assert metrics["0/scale"] / a**2 == pytest.approx(usual[1]["0/scale"], rel=1e-6)
    assert metrics["2/scale"] * b**2 == pytest.approx(usual[1]["2/scale"], rel=1e-6)
    assert metrics["waiting"] == 0
