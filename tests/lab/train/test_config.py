"""A cell's settings check themselves."""

from dataclasses import fields, replace

import pytest

from adareg.lab.train import config
from adareg.lab.train.config import Config

BASE = Config(data="digits", n=30, batch=8, blocks=2, epochs=1)


@pytest.mark.parametrize(
    "change",
    [
        {"n": -1},
        {"batch": 0},
        {"blocks": 1.5},
        {"epochs": -2},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"weight_decay": -1.0},
        {"dropout": 1.0},
        {"strength": "much"},
        {"strength": 0.0},
        {"lower": 2e3},
        {"upper": float("inf")},
        {"upper": "large"},
        {"precision": "bfloat16"},
        {"test": -1},
        {"trials": -1},
    ],
)
def test_a_wrong_value_is_named(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}=.*expected"):
        replace(BASE, **change)


def test_overrides_are_read_by_type():
    text = {"n": "60", "lr": "1e-2", "augment": "true", "strength": "auto", "precision": "float64"}
    changed = BASE.override(text)
    assert (changed.n, changed.lr, changed.augment) == (60, 0.01, True)
    assert changed.penalty_strength == 1 / 120
    assert BASE.override({"strength": "0.5"}).penalty_strength == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"learning_rate": "1"}, "unknown config key 'learning_rate'; there are: data, n, batch"),
        ({"n": "many"}, "n='many': expected a value of type int"),
        ({"augment": "perhaps"}, "augment='perhaps'"),
    ],
)
def test_a_wrong_override_says_what_is_accepted(text, message):
    with pytest.raises(ValueError, match=message):
        BASE.override(text)


def test_every_field_changes_the_digest():
    others = {
        "data": "mnist", "n": 31, "batch": 9, "blocks": 3, "epochs": 2, "lr": 1e-3,
        "weight_decay": 0.1, "dropout": 0.1, "decov": 0.1, "strength": 1e-3, "lower": 1e-2,
        "upper": 1e2, "augment": True, "evaluate_every": 1, "test": 5, "covariances": True,
        "precision": "float64", "trials": 3, "choose": "accuracy",
    }  # fmt: skip
    assert others.keys() == {field.name for field in fields(Config)}
    digests = {replace(BASE, **{name: value}).digest for name, value in others.items()}
    assert len(digests | {BASE.digest}) == len(others) + 1


def test_a_later_field_counts_only_where_it_is_not_at_its_default(monkeypatch):
    before, other = BASE.digest, replace(BASE, decov=0.5).digest
    monkeypatch.setattr(config, "_LATER", config._LATER | {"decov"})
    assert BASE.digest != before  # it is left out
    assert replace(BASE, decov=0.5).digest == other
    assert replace(BASE, decov=0.25).digest not in (BASE.digest, other)
