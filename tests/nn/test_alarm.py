"""An alarm in every network that a penalty destroys, and in none that it leaves well."""

import copy
import warnings
from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import adareg


@cache
def digits():
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:200]
    return torch.tensor(x, dtype=torch.float32)[order] / 16 - 0.3, torch.tensor(y)[order]


def make_network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
        )


def train(model, reg, steps, attached=True, update_every=50):
    """Train as a user would, and return the messages of the alarm."""
    x, y = digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if attached:
        reg.attach(optimizer, update_every=update_every)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            (loss if attached else loss + reg.penalty()).backward()
            optimizer.step()
            if not attached and (step + 1) % update_every == 0:
                reg.update()
    assert all(issubclass(one.category, adareg.PenaltyWarning) for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize(
    ("layers", "strength", "rule"),
    [
        ("all", 1e-3, "joint"),
        ("all", 1 / 400, "joint"),
        ("all", 1 / 400, "alternating"),
        ("all", 1e-2, "official"),
        (["0"], 1e-2, "joint"),
    ],
)
def test_a_penalty_that_destroys_the_network_is_noticed_at_its_first_update(
    layers, strength, rule, attached
):
    model = make_network()
    reg = adareg.AdaReg(model, layers, strength, rule=rule)
    (message,) = train(model, reg, 60, attached)
    assert "0: the penalty pulls at this weight" in message
    assert "use a strength of at most" in message


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
@pytest.mark.parametrize(("layers", "strength"), [("last", 1e-4), ("last", 1e-3), ("all", 1e-4)])
def test_a_penalty_that_the_network_stands_is_passed_over(layers, strength, rule, attached):
    model = make_network()
    reg = adareg.AdaReg(model, layers, strength, rule=rule)
    assert train(model, reg, 300, attached) == []
    x, y = digits()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


def test_the_strength_that_the_alarm_names_is_one_that_the_network_stands():
    model = make_network()
    (message,) = train(model, adareg.AdaReg(model, "all", 1e-2, rule="joint"), 60)
    named = float(message.split("at most ")[-1].split()[0])
    model = make_network()
    assert train(model, adareg.AdaReg(model, "all", named, rule="joint"), 300) == []


def test_a_layer_that_vanishes_slowly_is_noticed():
    model = make_network()
    reg = adareg.AdaReg(model, "all", 1e-9)
    x, y = digits()

    def update_beside_a_fading_weight():
        for _ in range(4):
            model.zero_grad()
            (cross_entropy(model(x), y) + reg.penalty()).backward()
            reg.update()
            with torch.no_grad():
                model[2].weight.mul_(0.3)

    with pytest.warns(adareg.PenaltyWarning, match=r"2: the norm of this weight has fallen"):
        update_beside_a_fading_weight()


def test_the_penalty_in_the_loss_beside_an_attachment_is_noticed_once():
    model = make_network()
    reg = adareg.AdaReg(model, strength=1e-4)
    reg.attach(torch.optim.SGD(model.parameters(), lr=0.1), update_every=10)
    reg.penalty().detach()  # to be logged
    with pytest.warns(adareg.PenaltyWarning, match="counts twice"):
        reg.penalty().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reg.penalty().backward()


@pytest.mark.parametrize("updated", [True, False])
def test_an_attachment_without_updates_is_noticed_after_a_thousand_steps(updated):
    model = nn.Linear(2, 2)
    reg = adareg.AdaReg(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    reg.attach(optimizer)
    model(torch.ones(1, 2)).sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1001):
            optimizer.step()
            if updated and step == 500:
                reg.update()
    assert [str(one.message)[:28] for one in caught] == (
        [] if updated else ["1000 steps without an update"]
    )


@pytest.mark.parametrize("how", ["state", "copy"])
def test_training_that_goes_on_from_a_state_is_not_judged_by_its_small_gradients(how):
    model = make_network()
    reg = adareg.AdaReg(model, strength=1e-3, rule="joint")
    train(model, reg, 300)
    model = copy.deepcopy(model)
    if how == "state":
        new = adareg.AdaReg(model, strength=1e-3, rule="joint")
        new.load_state_dict(reg.state_dict())
    else:
        new = copy.deepcopy(reg)
        model = new.model
    assert train(model, new, 60) == []
