"""The benchmark's criteria in worlds that are known, and its part of the page."""

import math

import numpy as np
import pytest

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.experiments.smalldata import METHODS
from adareg.lab.judge.claims import Records
from adareg.lab.judge.claims.smalldata import CRITERIA, judge
from adareg.lab.report import build
from adareg.lab.run.records import Store
from adareg.lab.train.stacked import Replica
from fakes.records import fill, record
from read_page import Page

NAMES = [name for name in EXPERIMENTS if name.startswith("smalldata-")]


def world(better, *, seeds=6, cost=1.0, names=NAMES, scale="small"):
    """Records in which a method is better than none by ``better(method, cell number)`` points."""
    draw, made, number = np.random.default_rng(0), [], 0
    for name in names:
        for config in EXPERIMENTS[name].cells(scale):
            shared = draw.normal(size=seeds)
            for method in METHODS:
                own = draw.normal(size=seeds)
                own -= own.mean()
                for seed in range(seeds):
                    points = 50 + shared[seed] + 0.1 * own[seed] + better(method, number)
                    values = {
                        "test_accuracy": points / 100,
                        "alone_seconds": cost if method.startswith("evidence") else 1.0,
                    }
                    made.append(record(name, scale, config, Replica(method, seed), **values))
            number += 1
    return made


def verdicts(*arguments, **settings):
    return {k: j.verdict for k, j in judge(Records(world(*arguments, **settings))).items()}


def good(method, number):
    return {"evidence": 2.0, "evidence+dropout": 3.0, "dropout": 1.0, "weight-decay": 1.0}.get(
        method, 0.0
    )


def test_a_world_as_it_was_asked_for():
    assert set(verdicts(good).values()) == {"met"}


def test_the_opposite_world():
    found = verdicts(lambda method, number: -good(method, number), cost=8.0)
    assert set(found.values()) == {"not met"}


def test_nine_cells_in_ten_are_enough():
    cells = sum(len(EXPERIMENTS[name].cells("small")) for name in NAMES)

    def but(count):
        return lambda m, i: -1.0 if m == "evidence" and i < count else good(m, i)

    allowed = math.floor(0.1 * cells + 1e-9)
    key = "evidence-weight-decay"
    assert verdicts(but(allowed))[key] == "met"
    assert verdicts(but(allowed + 1))[key] == "not met"
    assert verdicts(but(allowed))["evidence-none"] == "partly"
    assert verdicts(but(allowed + 1))["evidence-none"] == "not met"


def test_within_a_standard_error_is_partly():
    """Paired differences have a deviation of about 0.14: a standard error of 0.06."""
    found = verdicts(lambda m, i: good(m, i) if m != "evidence" else 0.99, names=NAMES[:3])
    assert found["evidence-weight-decay"] == "partly"
    assert found["evidence-none"] == "met"
    assert found["evidence-average"] == "not met"


@pytest.mark.parametrize(
    ("cost", "against_tuning", "against_plain"),
    [(1.1, "met", "met"), (1.6, "met", "not met"), (2.0, "not met", "not met")],  # 17 / 10 is 1.7
)
def test_cost_counts_trials_and_has_two_sides(cost, against_tuning, against_plain):
    found = verdicts(good, cost=cost, names=NAMES[:2])
    assert found["evidence-cost"] == against_tuning
    assert found["evidence-overhead"] == against_plain


def test_few_seeds_and_no_records_are_not_enough():
    assert set(verdicts(good, seeds=2, names=NAMES[:2]).values()) == {"not enough data"}
    for judgement in judge(Records([])).values():
        assert judgement.verdict == "not enough data"
        assert judgement.missing == ("adareg reproduce smalldata --scale paper",)


def test_a_network_that_diverged_counts_as_knowing_nothing():
    made = world(good, names=["smalldata-wine"])
    for one in made:
        if one["method"] == "evidence":
            one["metrics"]["diverged"] = True
    found = judge(Records(made))["evidence-none"]
    assert found.verdict == "not met"
    assert found.effects[0].value == pytest.approx(-50, abs=2)


def test_the_median_cell_is_told_beside_the_mean():
    """One cell in which weight decay fails does not pass for a gain everywhere."""
    found = judge(Records(world(lambda m, i: -90.0 * (m == "weight-decay" and i == 0))))
    assert found["evidence-average"].verdict == "met"
    assert "0.00 in the median cell" in found["evidence-average"].measured


def test_averages_are_those_of_the_records():
    made = world(good, names=["smalldata-wine", "smalldata-digits"])
    found = judge(Records(made))["evidence-average"]
    each = [
        np.mean([
            100 * (r["metrics"]["test_accuracy"] - o["metrics"]["test_accuracy"])
            for r in made for o in made
            if (r["method"], o["method"]) == ("evidence", "weight-decay")
            and r["config"] == o["config"] and r["seed"] == o["seed"] == seed
        ])
        for seed in range(6)
    ]  # fmt: skip
    assert found.effects[0].value == pytest.approx(np.mean(each))
    assert found.effects[0].low < np.mean(each) < found.effects[0].high
    assert [effect.what for effect in found.effects] == ["all cells", "digits", "wine"]


@pytest.mark.parametrize("value", [None, "text", -1.0, 1e300, [], {}])
def test_numbers_of_records_may_be_anything(value):
    made = world(good, names=["smalldata-wine"])
    for i, one in enumerate(made):
        metrics = one["metrics"]
        metrics[list(metrics)[i % len(metrics)]] = value
    assert judge(Records(made)).keys() == CRITERIA.keys()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    fill(root, "smalldata-wine", "smalldata-diabetes", "smalldata-digits", scale="small", seeds=5)
    return root, Page(build(root))


def test_ranks_on_the_page_are_those_of_the_records(page):
    root, shown = page
    table = shown.csv("smalldata-ranks")
    chosen = table[(table["measure"] == "test_calibration") & (table["data"] == "wine")]
    values = {}
    for one in Store(root).read("smalldata-wine"):
        key = one["config"]["n"], one["method"]
        values.setdefault(key, []).append(one["metrics"]["test_calibration"])
    sizes = {n for n, _ in values}
    for row in chosen.to_dict("records"):
        places = []
        for n in sizes:
            mean = {m: np.mean(v) for (size, m), v in values.items() if size == n}
            places.append(1 + sum(other < mean[row["method"]] for other in mean.values()))
        assert row["rank"] == pytest.approx(np.mean(places))
    assert len(chosen) == len(METHODS)


def test_costs_on_the_page_count_trials(page):
    table = page[1].csv("smalldata-costs").set_index("method")
    assert table.loc["none", "cost"] == 1
    assert 15 < table.loc["weight-decay", "cost"] < 19
    assert 13 < table.loc["dropout", "samples"] < 18
    assert 0.9 < table.loc["evidence", "cost"] < 1.1


def test_gains_are_paired(page):
    _, shown = page
    table = shown.csv("smalldata-gains")
    change = table[table["measure"] == "change in quality"]
    level = table[table["measure"] == "quality"].set_index(["data", "n", "method"])["mean"]
    for row in change.to_dict("records"):
        key = row["data"], row["n"]
        expected = level[(*key, row["method"])] - level[(*key, "none")]
        assert row["mean"] == pytest.approx(expected, abs=2e-5)  # levels have seven digits
    assert "critical difference" in shown.text
