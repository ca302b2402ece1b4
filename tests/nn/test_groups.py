"""Layers of one shape share a batch: nothing changes but the number of kernels."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

from adareg import AdaReg
from adareg.nn import groups
from training import assert_close

# Priors are strong here, so that what they do shows.
pytestmark = pytest.mark.filterwarnings("ignore::adareg.PenaltyWarning")


class Counter(TorchDispatchMode):
    """Counts the operations that reach a backend."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not any(
            word in str(func) for word in ("view", "unbind", "transpose", "detach", "select")
        ):
            self.count += 1
        return func(*args, **(kwargs or {}))


def make(layers=5, dtype=torch.float64):
    torch.manual_seed(0)
    blocks = [nn.Linear(6, 6, bias=False) for _ in range(layers)]
    return nn.Sequential(nn.Linear(4, 6), *blocks, nn.Linear(6, 3)).to(dtype)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("rates", [[0.1], [0.1, 0.3]], ids=["one-rate", "two-rates"])
@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
def test_a_group_trains_like_its_layers_alone(monkeypatch, mode, rates, rule):
    x = torch.randn(10, 4, dtype=torch.float64)
    together, alone = make(), make()
    for model, limit in [(together, 2**18), (alone, 0)]:
        monkeypatch.setattr(groups, "_STACK_UP_TO", limit)
        weights = list(model.parameters())
        parts = [{"params": weights[i :: len(rates)], "lr": lr} for i, lr in enumerate(rates)]
        optimizer = SGD(parts)
        reg = AdaReg(model, layers="all", strength=1e-2, rule=rule, bounds=(0.1, 10))
        assert len(reg.groups) == (3 if limit else 7)
        reg.attach(optimizer, mode, update_every=2)
        for _ in range(5):
            step(model, optimizer, x)
    assert_close(together, alone, rtol=1e-9, atol=1e-12)


def test_a_layer_without_gradient_is_left_alone_in_its_group():
    model = make()
    optimizer = SGD(model.parameters(), 0.1)
    reg = AdaReg(model, layers="all", strength=0.5)
    reg.attach(optimizer)
    before = copy.deepcopy(model)
    for index in (1, 3):
        model[index].weight.grad = torch.zeros_like(model[index].weight)
    optimizer.step()
    for index in range(1, 6):
        factor = 0.9 if index in (1, 3) else 1.0
        torch.testing.assert_close(model[index].weight, factor * before[index].weight)


def operations(layers, action):
    model = make(layers, torch.float32)
    reg = AdaReg(model, layers="all", rule="joint")
    optimizer = SGD(model.parameters(), 0.1, foreach=True)
    reg.update()
    if action == "proximal":
        reg.attach(optimizer, "proximal")
        step(model, optimizer, torch.randn(2, 4))
    with Counter() as counter:
        if action == "proximal":
            reg._attachment._shrink(optimizer, (), {})
        else:
            getattr(reg, action)()
    return counter.count


@pytest.mark.parametrize("action", ["penalty", "update", "proximal"])
def test_operations_do_not_grow_with_the_number_of_layers(action):
    assert operations(40, action) == operations(4, action)


def test_large_layers_stay_alone():
    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
    assert len(AdaReg(model, layers="all").groups) == 2


def test_priors_keep_the_models_order_and_are_snapshots():
    model = make(2)
    reg = AdaReg(model, layers="all")
    assert list(reg.priors) == ["0", "1", "2", "3"]
    reg.update()
    first = reg.priors["1"]
    kept = first.row.dense()
    with torch.no_grad():
        model[1].weight.mul_(3)
    reg.update()
    assert torch.equal(first.row.dense(), kept)
    assert not torch.equal(reg.priors["1"].row.dense(), kept)


def test_a_layer_that_changes_its_dtype_leaves_its_group():
    model = make(3)
    reg = AdaReg(model, layers="all", strength=1.0)
    assert len(reg.groups) == 3
    before = reg.penalty()
    model[2].float()
    assert len(reg.groups) == 4
    torch.testing.assert_close(reg.penalty().double(), before, rtol=1e-6, atol=0)
