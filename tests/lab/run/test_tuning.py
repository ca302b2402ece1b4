"""Trials: the same for everybody, on samples of their own, blind to the test."""

import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from adareg import cli
from adareg.core.evidence import constants
from adareg.core.evidence.constants import Constants
from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.experiments.smalldata import METHODS as COMPETITORS
from adareg.lab.run import cell, costs, tuning
from adareg.lab.run.records import Store
from adareg.lab.train import draws, plain_loop
from adareg.lab.train.config import Config
from adareg.lab.train.methods import METHODS
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.stacked import Data, Replica, Trainer, stacks
from fakes.datasets import fake

CONFIG = Config(
    data="digits", n=20, batch=8, blocks=2, epochs=4, lr=2e-3, precision="float64", trials=3
)
CPU = torch.device("cpu")


def run(source, methods, config=CONFIG, seeds=(0, 1)):
    return cell.run(config, [Replica(m, s) for m in methods for s in seeds], source, CPU)


def test_a_seeds_trials_cover_the_space_and_are_shared():
    config = replace(CONFIG, trials=16)
    made = tuning.trials(config, [Replica(m, s) for m in COMPETITORS for s in (0, 1)])
    assert {r.method for r in made} == {"decov", "weight-decay", "adareg", "dropout"}
    for name in {r.method for r in made}:
        space = METHODS[name].tunes
        for seed in (0, 1):
            values = [r.value for r in made if (r.method, r.seed) == (name, seed)]
            edges = [space.at(i / 16) for i in range(17)]
            assert len(values) == 16
            for value, low, high in zip(values, edges, edges[1:], strict=False):
                assert low <= value < high
    first, second = ([r.value for r in made if r.seed == s] for s in (0, 1))
    assert not set(first) & set(second)


def test_spaces_are_logarithmic_or_not():
    assert METHODS["weight-decay"].tunes.at(0.5) == pytest.approx(math.sqrt(1e-5))
    assert METHODS["dropout"].tunes.at(0.5) == pytest.approx(0.425)
    for name in COMPETITORS:
        space = METHODS[name].tunes
        if space is not None:
            tuned = METHODS[name].tuned(space.high)
            assert [i.strength for i in tuned.ingredients if isinstance(i, space.of)] == [
                space.high
            ]


def test_the_lowest_finite_loss_is_chosen():
    losses = {0.1: 3.0, 0.2: math.nan, 0.3: 1.0, 0.4: -math.inf, 0.5: 2.0}
    found = tuning.choose((Replica("dropout", 7, v), (0.0, loss)) for v, loss in losses.items())
    assert found["dropout", 7].value == 0.3
    assert found["dropout", 7].loss == 1.0
    assert tuning.chosen(Replica("dropout", 7), found).value == 0.3
    assert tuning.chosen(Replica("evidence+dropout", 7), found).value == 0.3
    assert tuning.chosen(Replica("evidence", 7), found).value is None


def test_errors_count_before_the_loss_if_accuracy_is_to_decide():
    trials = {0.1: (0.5, 1.0), 0.2: (0.25, 3.0), 0.3: (0.25, 2.0), 0.4: (0.0, math.nan)}
    found = tuning.choose((Replica("dropout", 7, v), judged) for v, judged in trials.items())
    assert found["dropout", 7].value == 0.3
    assert found["dropout", 7].loss == 2.0


def test_trials_are_judged_by_accuracy_if_asked_to():
    source, config = fake("digits"), replace(CONFIG, choose="accuracy")
    x, y = source.x_train.double(), source.y_train
    (outcome,) = run(source, ("weight-decay",), config, seeds=(0,))
    own = draws.subset(len(x), 20, 0)[16:]
    judged = {}
    for value, loss in outcome.arrays["trials"]:
        network, _ = plain_loop.train(
            Replica("weight-decay", 0, value), CONFIG.without_held_out(), x, y
        )
        judged[value] = int((network(x[own]).argmax(1) != y[own]).sum()), loss
    assert outcome.metrics["tuned"] == min(judged, key=judged.__getitem__)
    assert config.digest != CONFIG.digest
    with pytest.raises(ValueError, match="choose='accuracy': .* has no classes"):
        run(fake("sarcos"), ("none",), replace(config, data="sarcos"))


def test_a_fifth_of_a_seeds_own_samples_is_held_out():
    source = fake("digits")
    data = Data(source, CONFIG, CPU, torch.float64)
    replicas = [Replica("dropout", s, v) for s in (0, 3) for v in (0.2, 0.5)]
    trainer = Trainer(replicas, ARCHITECTURES["digits"], CONFIG, data, hold_out=True)
    for i, replica in enumerate(replicas):
        own = draws.subset(source.n_train, 20, replica.seed).tolist()
        assert trainer.subset[i].tolist() == own[:16]
        assert trainer.held_out[i].tolist() == own[16:]


@pytest.mark.parametrize(("n", "batch", "epochs"), [(80, 64, 50), (20, 64, 50), (300, 64, 20)])
def test_training_on_four_fifths_has_as_many_steps(n, batch, epochs):
    config = replace(CONFIG, n=n, batch=batch, epochs=epochs)
    fewer = config.without_held_out()
    steps = [c.epochs * math.ceil(c.n / batch) for c in (config, fewer)]
    assert fewer.n == n - n // 5
    assert steps[1] == pytest.approx(steps[0], rel=0.05)


def test_trials_and_the_network_after_them_are_networks_trained_alone():
    source = fake("digits")
    x, y = source.x_train.double(), source.y_train
    for outcome in run(source, ("weight-decay", "dropout", "evidence+dropout")):
        replica = outcome.replica
        name, own = tuning.tried_method(replica.method), draws.subset(len(x), 20, replica.seed)
        for value, loss in outcome.arrays["trials"]:
            trial = Replica(name, replica.seed, value)
            network, _ = plain_loop.train(trial, CONFIG.without_held_out(), x, y)
            expected = torch.nn.functional.cross_entropy(network(x[own[16:]]), y[own[16:]])
            assert loss == pytest.approx(expected.item(), rel=1e-8)
        best = min(outcome.arrays["trials"], key=lambda trial: trial[1])[0]
        assert outcome.metrics["tuned"] == best
        network, _ = plain_loop.train(replace(replica, value=best), CONFIG, x, y)
        expected = torch.nn.functional.cross_entropy(network(source.x_test.double()), source.y_test)
        assert outcome.metrics["test_nll"] == pytest.approx(expected.item(), rel=1e-8)


@pytest.mark.parametrize("name", ["digits", "sarcos"])
def test_what_is_chosen_does_not_depend_on_the_test_data(name):
    source, config = fake(name), replace(CONFIG, data=name)
    other = replace(source, x_test=-source.x_test, y_test=source.y_test.flip(0))
    methods = ("weight-decay", "adareg", "evidence+dropout", "early-stopping", "batch-norm")
    first, second = (run(data, methods, config) for data in (source, other))
    for one, two in zip(first, second, strict=True):
        assert one.replica == two.replica
        for key in ("tuned", "noise", "train_loss"):
            assert one.metrics[key] == two.metrics[key]
        assert one.arrays == two.arrays
        assert one.curves == two.curves
        assert one.metrics["test_nll"] != two.metrics["test_nll"]


def test_samples_beyond_a_seeds_own_are_never_seen():
    source = fake("digits")
    own = draws.subset(source.n_train, 20, 0)
    x = torch.full_like(source.x_train, torch.nan)
    x[own] = source.x_train[own]
    hidden = replace(source, x_train=x)
    methods = [name for name in COMPETITORS if name != "batch-norm"]
    first, second = (run(data, methods, seeds=(0,)) for data in (source, hidden))
    for one, two in zip(first, second, strict=True):
        assert one.metrics["test_nll"] == two.metrics["test_nll"], one.replica
        assert one.arrays == two.arrays


def test_the_noise_of_a_regression_is_what_a_method_knows_of_it(monkeypatch):
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=7))
    source, config = fake("sarcos"), replace(CONFIG, data="sarcos")
    methods = ("none", "weight-decay", "early-stopping", "evidence", "marginal-likelihood")
    for outcome in run(source, methods, config, seeds=(0,)):
        noise, method = outcome.metrics["noise"], outcome.replica.method
        if method == "none":
            assert noise == pytest.approx(outcome.metrics["train_loss"])
        if method == "weight-decay":
            assert noise == min(loss for _, loss in outcome.arrays["trials"])
        assert noise > 0


def test_costs_by_hand():
    """Eight epochs of 20 samples; three trials of eight epochs of 16, in two batches of eight."""
    config = replace(CONFIG, batch=8)
    assert config.without_held_out().epochs == 6  # two steps instead of three
    assert tuning.samples(config, "none") == 2 * 4 * 20
    assert tuning.samples(config, "weight-decay") == 2 * 4 * 20 + 3 * 2 * 6 * 16
    assert tuning.samples(config, "evidence+dropout") == tuning.samples(config, "dropout")
    assert tuning.samples(config, "early-stopping") == 2 * 6 * 16
    assert [tuning.trainings(config, m) for m in ("evidence", "decov", "batch-norm")] == [1, 4, 1]
    both = [Replica("dropout", 0), Replica("evidence+dropout", 0)]  # share their trials
    assert tuning.samples_of_all(config, both) == 2 * 2 * 4 * 20 + 3 * 2 * 6 * 16
    told, state = [], torch.get_rng_state()
    replicas = [Replica(m, 0) for m in COMPETITORS if m != "batch-norm"]
    cell.run(config, replicas, fake("digits"), CPU, told.append)
    assert sum(told) == tuning.samples_of_all(config, replicas)
    assert torch.equal(torch.get_rng_state(), state)
    outcome = run(fake("digits"), ("evidence",), config, seeds=(0,))[0]
    assert outcome.metrics["alone_seconds"] > 0
    assert outcome.metrics["plain_seconds"] > 0
    assert outcome.metrics["samples"] == 160


def test_the_time_of_a_training_is_the_sum_of_its_parts(monkeypatch):
    """Each part is said to take as long as its name: a step 1 s, an update 10 s, a look 100 s."""
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=7))
    clock = {"step": 1.0, "update": 10.0, "after_block": 10.0, "check": 100.0}
    name = lambda part: getattr(part, "func", part).__name__  # noqa: E731
    monkeypatch.setattr(costs, "_time", lambda part, burst, device: clock[name(part)])
    source = fake("digits")
    methods = ("none", "adareg", "marginal-likelihood", "early-stopping", "evidence")
    x, y = source.x_train, source.y_train
    found = costs.seconds([Replica(m, 0) for m in methods], CONFIG, x, y)
    _, reg = plain_loop.train(Replica("evidence", 0), CONFIG, x, y)
    steps, updates = 2 * 4 * 3, reg.metrics()["updates"]
    assert updates > 1
    assert found == [steps, steps + 20, steps + 20, 24 + 12 * 100, steps + 10 * updates]


def test_too_few_samples_to_hold_out_are_refused():
    with pytest.raises(ValueError, match="n=4: trials need five samples"):
        run(fake("digits"), ("none",), replace(CONFIG, n=4))


def test_a_stack_holds_trials_of_all_methods():
    made = tuning.trials(CONFIG, [Replica(m, s) for m in COMPETITORS for s in (0, 1)])
    (group,) = stacks(made)
    assert len(group) == 4 * 2 * 3


def test_records_are_resumed(tmp_path):
    arguments = ["reproduce", "smalldata-wine", "--scale", "smoke", "--out", str(tmp_path)]
    arguments += ["--device", "cpu"]
    first = CliRunner().invoke(cli.app, arguments)
    assert first.exit_code == 0, first.output
    before = {(r["method"], r["seed"]): r for r in Store(tmp_path).read()}
    assert len(before) == len(COMPETITORS)
    assert "0 networks to train, 10 recorded" in CliRunner().invoke(cli.app, arguments).output
    largest = max((tmp_path / "smalldata-wine").iterdir(), key=lambda path: path.stat().st_size)
    largest.unlink()
    assert "8 networks to train, 2 recorded" in CliRunner().invoke(cli.app, arguments).output
    for record in Store(tmp_path).read():
        old = before[record["method"], record["seed"]]
        assert record["metrics"]["test_nll"] == old["metrics"]["test_nll"]
        assert record["metrics"]["tuned"] == old["metrics"]["tuned"]


def test_costs_are_measured_again_and_nothing_else_changes(tmp_path, monkeypatch):
    arguments = ["reproduce", "smalldata-wine", "--scale", "smoke", "--device", "cpu"]
    for method in ("none", "dropout"):  # each timed beside a plain network of its own
        one = [*arguments, "--methods", method, "--out", str(tmp_path)]
        assert CliRunner().invoke(cli.app, one).exit_code == 0
    store = Store(tmp_path)
    store.pack()
    before = {r["method"]: r for r in store.read()}
    assert len({r["metrics"]["plain_seconds"] for r in before.values()}) == 2
    monkeypatch.setattr(costs, "_time", lambda part, burst, device: 2.0)
    result = CliRunner().invoke(cli.app, ["runs", str(tmp_path), "--time"])
    assert "timing smalldata-wine n20" in result.output
    after = {r["method"]: r for r in store.read()}
    own = {"alone_seconds", "plain_seconds"}
    for method, old in before.items():
        new = after[method]
        assert {new["metrics"][name] for name in own} == {2.0 * 60}
        assert {k: v for k, v in new["metrics"].items() if k not in own} == {
            k: v for k, v in old["metrics"].items() if k not in own
        }
        assert {k: new[k] for k in old if k != "metrics"} == {
            k: v for k, v in old.items() if k != "metrics"
        }
        assert new["timed"].keys() >= {"commit", "torch", "time"}
    assert store.pack() == 0  # what was compressed still is


def test_a_name_stands_for_the_whole_benchmark(tmp_path):
    result = CliRunner().invoke(
        cli.app, ["reproduce", "smalldata", "--scale", "none", "--out", str(tmp_path)]
    )
    assert "--scale 'none'" in result.output
    assert len([name for name in EXPERIMENTS if name.startswith("smalldata-")]) == 8
