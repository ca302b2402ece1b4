"""A verdict and its figure show the same networks and intervals, whatever has been recorded."""

import pytest

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.judge.claims import CLAIMS
from adareg.lab.judge.claims.quantities import ACCURACY, STABLE_RANK
from adareg.lab.judge.claims.smalldata import CRITERIA
from adareg.lab.judge.selection import Records
from adareg.lab.report.figures import FIGURES, SMALL_DATA
from adareg.lab.run.schema import problem
from adareg.lab.train.stacked import Replica
from fakes.networks import networks
from fakes.records import record


def level(points):
    return lambda method, config: {"accuracy": 90 + points * (method == "adareg")}


def drawn(records, key):
    (figure,) = (figure for figure in (*FIGURES, *SMALL_DATA) if figure.key == key)
    return figure.draw(records).data


def lost(records, method, count=2):
    """Let some of a method's networks diverge."""
    for made in [r for r in records if r["method"] == method][:: len(records) // 6][:count]:
        made["metrics"] |= {"diverged": True, "test_accuracy": 0.1}
    return records


OWN = networks("mnist-generalization", level(0.5), seeds=6)
WORLDS = {
    "one scale": OWN,
    "two scales": OWN + networks("mnist-generalization", level(-1), scale="small"),
    "a larger scale with changed settings": networks(
        "mnist-generalization", level(0.5), seeds=4, scale="small"
    )
    + networks("mnist-generalization", level(-1), lr=1e-3),
    "changed settings alone": networks("mnist-generalization", level(0.5), epochs=3),
    "three seeds": networks("mnist-generalization", level(0.5), seeds=3),
    "networks that diverged": lost(networks("mnist-generalization", level(0.5)), "adareg"),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_gain_that_is_judged_is_drawn(world):
    records = Records(WORLDS[world])
    table = drawn(records, "gain").query("method == 'adareg'").set_index(["n", "batch"])
    effects = CLAIMS["mnist-improves"].judge(records).effects
    settings = {e.what.rpartition(", n = ")[2]: e for e in effects if ", n = " in e.what}
    assert len(settings) == len(table)
    for where, effect in settings.items():
        n, batch = (int(part.replace(",", "")) for part in where.split(", batch "))
        row = table.loc[n, batch]
        assert [row["change"], row["low"], row["high"], row["seeds"]] == pytest.approx(
            [effect.value, effect.low, effect.high, effect.seeds], rel=1e-9
        )


@pytest.mark.parametrize("rich", ["mnist-spectra", "mnist-generalization"])
def test_spectra_are_drawn_of_the_networks_that_are_judged(rich):
    """Two experiments have them: the one with more seeds counts, in both."""
    made = [
        record
        for name in ("mnist-spectra", "mnist-generalization")
        for record in networks(
            name,
            lambda method, config, name=name: {"stable_rank": 4.0 if name == rich else 6.0},
            seeds=6 if name == rich else 4,
        )
    ]
    records = Records(made)
    table = drawn(records, "spectra").query("measure == 'stable_rank'")
    assert set(table["seeds"]) == {6}
    assert table["mean"].between(3.9, 4.1).all()
    judged = CLAIMS["mnist-stable-rank"].judge(records)
    assert {effect.seeds for effect in judged.effects} == {6}


def contest(scale, name, seeds, **metrics):
    return [
        record(name, scale, config, Replica(method, seed), **metrics)
        for config in EXPERIMENTS[name].cells(scale)
        for method in ("none", "evidence", "weight-decay")
        for seed in range(seeds)
    ]


def test_the_small_data_benchmark_is_drawn_as_it_is_judged():
    """Scales are not mixed, and a network that diverged has no points, in both."""
    wine = contest("small", "smalldata-wine", 3)
    for made in wine:
        if made["method"] == "evidence":
            made["metrics"]["diverged"] = True
    records = Records([*wine, *contest("smoke", "smalldata-diabetes", 3)])
    gains = drawn(records, "smalldata-gains").query("method == 'evidence'")
    assert set(gains["data"]) == {"wine"}
    points = gains[gains["measure"] == "quality"]
    assert (points["mean"] == 0).all()
    judged = CRITERIA["evidence-none"].judge(records)
    assert len(judged.effects) == len(points)
    none = drawn(records, "smalldata-gains").query("method == 'none' and measure == 'quality'")
    assert judged.effects[0].value == pytest.approx(-none["mean"].max())


def test_fabricated_records_are_such_as_are_read():
    made = [*OWN, *networks("sarcos", level(0)), *contest("smoke", "smalldata-wine", 1)]
    assert {problem(dict(one)) for one in made} == {None}
    assert STABLE_RANK.measure(OWN[0]) > 0
    assert ACCURACY.measure(OWN[0]) > 0
