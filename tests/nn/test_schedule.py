"""Schedules, and the steps at which attached regularizers update."""

import pytest
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from adareg import AdaReg, EvidenceReg
from adareg.core.evidence import constants
from adareg.core.evidence.constants import Constants
from adareg.nn.schedule import Every, Growing, Never, Schedule, times
from learning import classes, mlp


def test_attached_updates_are_few_and_ever_rarer(monkeypatch):
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=5))
    x, y = classes()
    model = mlp()
    reg = EvidenceReg(model, 40, "classification")
    optimizer = SGD(model.parameters(), 0.1)
    reg.attach(optimizer)
    at = []
    for step in range(60):
        before = reg.metrics()["updates"]
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if reg.metrics()["updates"] > before:
            at.append(step + 1)
    assert at == [5, 7, 10, 13, 17, 23, 30, 39, 51]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Never(), []),
        (Every(7), [7, 14, 21, 28, 35]),
        (Growing(5, 2.0), [5, 10, 20]),
    ],
)
def test_times(schedule, expected):
    assert times(schedule, 39) == expected


def test_a_schedule_takes_the_place_of_a_number():
    """A user's own, which has nothing private in it."""

    class Powers(Schedule):
        def is_due(self, step, last):
            return step.bit_count() == 1

    x, y = classes()
    model = mlp()
    reg = AdaReg(model)
    optimizer = SGD(model.parameters(), 0.1)
    handle = reg.attach(optimizer, update_every=Powers())
    assert isinstance(handle.schedule, Powers)
    updated = []
    for step in range(1, 20):
        before = reg.groups
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if reg.groups is not before:
            updated.append(step)
    assert updated == [1, 2, 4, 8, 16]
    handle.remove()
    with pytest.raises(ValueError, match="update_every='often': expected a positive integer, a"):
        reg.attach(optimizer, update_every="often")
