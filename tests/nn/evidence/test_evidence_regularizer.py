"""The regularizer that users hold: updates, strength, state, errors."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import Adam

import adareg
from adareg import EvidenceReg
from adareg.core.evidence.likelihood import LIKELIHOODS
from learning import assert_sound, classes, fit, mlp
from training import train


@pytest.mark.parametrize("outputs", [5, 12])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_default_device_does_not_matter(outputs, likelihood):
    x = torch.randn(310, 2, 4)
    y = {
        "classification": torch.zeros(310),
        "multilabel": torch.randint(2, (310, outputs)).float(),
        "counts": torch.randint(9, (310, outputs)).float(),
    }.get(likelihood, torch.randn(310, outputs))
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(8, outputs))
    reg = EvidenceReg(model, 310, likelihood)
    with torch.device("meta"):
        reg.update(x, y)
        reg.correlations("2")
    assert_sound(reg, model)


def test_layers_that_are_frozen_later_are_left_out():
    x, y = classes()
    model = mlp()
    reg = fit(model, x, y)
    before = reg.priors["0"].col.dense()
    model[0].requires_grad_(False)
    reg.update(x, y)
    assert torch.equal(reg.priors["0"].col.dense(), before)
    assert reg.metrics()["gamma"] == reg.metrics()["2/gamma"]
    assert_sound(reg, model)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="0, 2: the weights are frozen"):
        reg.update(x, y)


def test_strength_is_the_priors_share_of_the_loss():
    x, y = classes()
    model = mlp()
    reg = EvidenceReg(model, 40, "classification", loss_scale=2.0)
    assert reg.strength == 0  # nothing has been learned yet
    train(model, Adam(model.parameters(), 1e-2), 30, (x, y))
    reg.update(x, y)
    assert not any("clipped" in key for key in reg.metrics())  # there are no bounds
    assert reg.strength == pytest.approx(2 * reg.metrics()["noise"] / (2 * 40))
    targets = torch.randn(40, 5)
    reg = fit(mlp(), x, targets, loss=mse_loss)
    noise = reg.metrics()["noise"]
    assert 0 < noise <= targets.var(0).mean() * 1.01
    assert reg.strength == pytest.approx(noise / (40 * 5))


def test_state_goes_on_exactly():
    x, y = classes()
    model = mlp()
    reg = fit(model, x, y, steps=20)
    stored = io.BytesIO()
    torch.save(reg.state_dict(), stored)
    stored.seek(0)
    other = EvidenceReg(model, 7, "classification")
    other.load_state_dict(torch.load(stored, weights_only=True))
    for one in (other, pickle.loads(pickle.dumps(reg)), copy.deepcopy(reg)):
        assert one.metrics() == pytest.approx(reg.metrics(), nan_ok=False)
        assert one.strength == reg.strength
    for one in (reg, other):
        one.update(x, y)
    for name in reg.priors:
        assert torch.equal(reg.priors[name].col.dense(), other.priors[name].col.dense())


def test_errors_say_what_to_do():
    model = mlp()
    x, y = classes()
    with pytest.raises(ValueError, match="n_samples=0: expected the size of the training set"):
        EvidenceReg(model, 0, "classification")
    with pytest.raises(ValueError, match="likelihood='poisson'"):
        EvidenceReg(model, 5, "poisson", layers="last")
    with pytest.raises(ValueError, match="loss_scale=0"):
        EvidenceReg(model, 5, "classification", layers="last", loss_scale=0)
    reg = EvidenceReg(model, 40, "classification")
    with pytest.raises(AttributeError):  # it is learned
        reg.strength = 1.0
    with pytest.raises(
        RuntimeError, match="an update needs training inputs: call update.inputs., or"
    ):
        reg.update()
    with pytest.raises(ValueError, match="the inputs of these targets are needed"):
        reg.update(targets=y)
    with pytest.raises(ValueError, match="as many of each"):
        reg.update(x, y[:3])
    with pytest.raises(ValueError, match="the label 7 is none of 5 classes; expected integers 0…4"):
        reg.update(x, torch.where(y == 2, 7, y))
    with pytest.raises(ValueError, match="the label 0.5 is none of 5 classes"):
        reg.update(x, y + 0.5 * (y == 0))
    with pytest.raises(ValueError, match="targets of shape .40, 3. .*expected one label 0…4"):
        reg.update(x, torch.zeros(40, 3))
    with pytest.raises(ValueError, match="no batch"):
        reg.update([])
    handle = reg.attach(Adam(model.parameters()), update_every=1)
    with pytest.raises(RuntimeError, match="no training batch was seen: Sequential was not called"):
        reg.update()
    regression = EvidenceReg(model, 40, "regression")
    with pytest.raises(ValueError, match="give update\\(\\) the targets"):
        regression.update(x)
    handle.remove()
    regression.attach(Adam(model.parameters()))
    with pytest.raises(ValueError, match="needs targets"):
        model(x)
    with pytest.raises(ValueError, match="targets of shape"):
        regression.update(x, torch.zeros(40, 3))
    images = EvidenceReg(nn.Conv2d(1, 2, 1), 4, "classification", layers="last")
    with pytest.raises(ValueError, match="outputs have shape"):
        images.update(torch.zeros(4, 1, 2, 2))


def test_its_repr_shows_what_it_uses():
    reg = EvidenceReg(mlp(), 40, "classification", layers="last")
    shapes = {name: tuple(layer.blank.shape) for name, layer in reg.layers.items()}
    assert repr(reg) == (f"EvidenceReg(n_samples=40, likelihood='classification', layers={shapes})")


def test_not_finite_keeps_the_priors():
    model = mlp()
    x, y = classes()
    reg = EvidenceReg(model, 40, "classification")
    reg.update(x, y)
    before = reg.priors["0"].col.dense()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(adareg.NonFiniteError, match="0: the weight has NaN"):
        reg.update(x, y)
    assert torch.equal(reg.priors["0"].col.dense(), before)
    assert reg.metrics()["updates"] == 1
