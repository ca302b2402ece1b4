"""The numbers that README and documentation report are those of the committed records."""

import base64
import json
import re
import runpy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.report import render, style
from adareg.lab.run.records import Store

ROOT = Path(__file__).parents[1]
SIZES = (60, 240, 960, 3840, 15360, 60000)
METHODS = ("adareg", "weight-decay", "dropout", "batch-norm", "decov")


@pytest.fixture(scope="module", autouse=True)
def _read_once():
    """Every test reads the committed records; nothing changes them."""
    with pytest.MonkeyPatch.context() as patch:
        reading = Store.read
        read = cache(lambda root, experiment: list(reading(Store(root), experiment)))
        patch.setattr(Store, "read", lambda store, name="*", **_: iter(read(store.root, name)))
        yield


@pytest.fixture
def undrawn(monkeypatch):
    """No figure is drawn, which takes most of a page's time."""
    monkeypatch.setattr(style, "svg", lambda draw, size, key: "<svg></svg>\n")
    yield
    render._swatch.cache_clear()


def text_of(page):
    """Its words, with one space between them."""
    return " ".join((ROOT / page).read_text().split())


@pytest.fixture(scope="module")
def study():
    frame = Store(ROOT / "results/records").frame("mnist-generalization")
    assert len(frame) == 11 * 2 * 6 * 10
    assert not frame["diverged"].any()
    return frame


@pytest.mark.parametrize("name", ["mnist-generalization", "mnist-optimization"])
def test_committed_records_are_found_again(name):
    """A change of the settings' digest would have them all trained anew."""
    experiment, store = EXPERIMENTS[name], Store(ROOT / "results/records")
    wanted = len(experiment.methods) * experiment.seeds["paper"]
    for config in experiment.cells("paper"):
        assert len(store.done(name, config)) >= wanted, config.slug


@pytest.fixture(scope="module")
def results():
    """What ``make results`` runs."""
    return runpy.run_path(str(ROOT / "tools/results.py"))


def test_what_is_made_of_the_records_is_what_they_give(results):
    text = (ROOT / "README.md").read_text()
    assert {m[2] for m in results["SECTION"].finditer(text)} == results["sections"]().keys()
    assert results["readme"](text) == text
    assert (ROOT / "results/README.md").read_text() == results["measured"]()


@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_committed_report_is_what_the_records_give(results, drawn, request):
    """All of it but the paths of the drawings, which depend on fonts; their data are in it."""
    if not drawn:
        request.getfixturevalue("undrawn")
    committed = (ROOT / "results/report.html").read_text()
    assert without_drawings(results["build"](results["RECORDS"])) == without_drawings(committed)
    assert committed.count("data:text/csv") == committed.count("data:image/svg+xml") >= 13


def test_the_committed_report_shows_no_last_bits():
    page = without_drawings((ROOT / "results/report.html").read_text())
    files = (base64.b64decode(text).decode() for text in re.findall(r"csv;base64,([^\"]*)", page))
    numbers = re.findall(r"\d+\.\d+", " ".join([*re.findall(r'data-v="([^"]*)"', page), *files]))
    assert len(numbers) > 10_000
    assert max(len(number.replace(".", "").strip("0")) for number in numbers) <= 12


def without_drawings(page):
    page = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    return re.sub(r'"data:image/svg\+xml;base64,[^"]*"', "", page)


def test_the_committed_figure_is_what_the_records_give(results):
    committed = (ROOT / "results/gain.svg").read_text()
    drawn = results["figure"](results["RECORDS"], "gain")
    assert len(drawn) == pytest.approx(len(committed), rel=0.1)
    assert drawn.count("<path") == committed.count("<path")


def rounded(number, digits):
    """Half-way cases do not depend on the last bits of a sum."""
    return f"{round(number, 9):.{digits}f}"


def test_the_contests_picture_is_what_its_records_give(results):
    rows = results["shown"](results["Results"](ROOT / "results/tables").frame())
    path = ROOT / "results/tables.svg"
    assert path.exists() == (not rows.empty)
    if path.exists():
        committed, drawn = path.read_text(), results["draw"](rows)
        assert re.findall(r">([^<>\n]+)</text>", drawn) == re.findall(
            r">([^<>\n]+)</text>", committed
        )


def signed(number, digits):
    return f"{round(number, 9):+.{digits}f}".replace("-", "−")


def accuracy_rows(study, batch):
    """| n | none | change of each method ± standard error |, in points of accuracy."""
    cells = study[study["batch"] == batch]
    table = cells.pivot_table(index=["n", "seed"], columns="method", values="test_accuracy") * 100
    for n in SIZES:
        at = table.loc[n]
        change = at.sub(at["none"], axis=0)
        mean, error = change.mean(), change.std() / len(change) ** 0.5
        numbers = [f"{signed(mean[m], 2)} ± {rounded(error[m], 2)}" for m in METHODS]
        yield f"| {n:,} | {rounded(at['none'].mean(), 2)} | {' | '.join(numbers)} |"


def spectrum_rows(study):
    """| n | stable rank, spectral norm and test loss without, with AdaReg, with weight decay |."""
    cells = study[study["batch"] == 256]
    for n in SIZES:
        mean = cells[cells["n"] == n].groupby("method").mean(numeric_only=True)
        numbers = [
            " → ".join(rounded(mean.loc[m, column], digits) for m in ("none", "adareg"))
            + f" ({rounded(mean.loc['weight-decay', column], digits)})"
            for column, digits in (("stable_rank", 2), ("spectral_norm", 2), ("test_loss", 3))
        ]
        yield f"| {n:,} | {' | '.join(numbers)} |"


@pytest.mark.parametrize("batch", [256, 2048])
def test_accuracies_are_those_of_the_records(study, batch):
    text = (ROOT / "docs/worth.md").read_text()
    for row in accuracy_rows(study, batch):
        assert row in text, row


def test_spectra_are_those_of_the_records(study):
    text = (ROOT / "docs/worth.md").read_text()
    for row in spectrum_rows(study):
        assert row in text, row


def test_what_is_said_of_every_size_holds_at_every_size(study):
    """ "Within 0.15 points at every size", and the rest of the summary."""
    table = study.pivot_table(
        index=["batch", "n"],
        columns="method",
        values=["test_accuracy", "stable_rank", "spectral_norm"],
    )
    accuracy = 100 * table["test_accuracy"]
    change = accuracy["adareg"] - accuracy["none"]
    assert change.abs().max() < 0.15
    best = accuracy.drop(columns="adareg").max(axis=1) - accuracy["adareg"]
    assert best.min() > 0
    rank, norm = table["stable_rank"], table["spectral_norm"]
    assert (rank["adareg"] < rank["none"]).all()
    assert (norm["adareg"] < norm["none"]).all()
    minutes = study["seconds"].sum() / 60
    assert f"{minutes:.0f} minutes of one H200" in text_of("docs/worth.md")
    for page in ("README.md", "docs/worth.md"):
        assert "within 0.15 points of no regularizer at every" in text_of(page)


def test_what_is_said_of_cifar_holds_at_every_size():
    frame = Store(ROOT / "results/records").frame("cifar-generalization")
    assert frame["n"].max() == 50_000
    seeds = frame.groupby(["n", "batch", "method"])["seed"].nunique()
    assert set(seeds.loc[:20_000]) == {5}
    assert set(seeds.loc[25_000:]) == {3}
    columns = ["test_accuracy", "stable_rank", "spectral_norm"]
    table = frame.pivot_table(index=["batch", "n"], columns="method", values=columns)
    accuracy = 100 * table["test_accuracy"]
    assert 0.6 < (accuracy["adareg"] - accuracy["none"]).abs().max() < 0.8
    assert (accuracy.drop(columns="adareg").max(axis=1) > accuracy["adareg"]).all()
    for column in columns[1:]:
        assert (table[column]["adareg"] < table[column]["none"]).all()
        assert (table[column]["weight-decay"].loc[256] < table[column]["adareg"].loc[256]).all()
    assert (table["stable_rank"]["weight-decay"] < table["stable_rank"]["adareg"]).all()
    norm = table["spectral_norm"].loc[2048]
    assert list(norm.index[norm.idxmin(axis=1) == "adareg"]) == [*range(5_000, 40_001, 5_000)]
    assert "the norm is the lowest with AdaReg up to 35,000 images" in text_of("docs/worth.md")
    assert "on CIFAR-10 weight decay lowers the rank further" in text_of("README.md")
    assert "on CIFAR-10 within 0.8," in text_of("README.md")
    assert "On MNIST and CIFAR-10 some other method is always better" in text_of("README.md")
    gain = accuracy.sub(accuracy["none"], axis=0)
    assert (accuracy.idxmax(axis=1) == "batch-norm").all()
    text = text_of("docs/worth.md")
    assert "stays within 0.8 points of no regularizer at every size" in text
    seeds = 100 * frame.pivot_table("test_accuracy", ["batch", "seed", "n"], "method")
    for batch, words in ((256, "gains {} points [{}, {}]"), (2048, "none at 2048: {} [{}, {}]")):
        change = (seeds["adareg"] - seeds["none"]).loc[batch].unstack().dropna().mean(axis=1)
        low, high = stats.ttest_1samp(change, 0.0).confidence_interval(0.95)
        numbers = [rounded(x, 2).replace("-", "−") for x in (change.mean(), low, high)]
        assert words.format(*numbers) in text
        if batch == 256:
            assert len(change) == 3  # "the three seeds that all of them have"
        else:
            assert low < 0 < high  # "no better at 2048"
    average = gain.groupby("batch").mean()
    assert sorted(average["batch-norm"].round(1)) == [2.4, 2.5]
    assert list(average["decov"].round(1)) == [1.1, 1.8]
    assert average["dropout"].between(-4, -2).all()
    assert (average["weight-decay"] < -6).all()


def test_what_is_said_of_halves_of_digits_holds_at_every_size():
    frame = Store(ROOT / "results/records").frame("digits-completion")
    table = frame.pivot_table(index="n", columns="method", values="test_explained_variance")
    gain = table.sub(table["none"], axis=0)
    assert list(gain.index) == [60, 120, 240, 480, 960]
    assert gain["adareg"].between(0.02, 0.03).all()
    decay = gain["weight-decay"]
    assert decay.loc[:480].between(0.055, 0.115).all()
    assert (gain.drop(columns=["adareg", "adareg-joint"]).max(axis=1) > gain["adareg"]).all()
    assert gain["batch-norm"][960] == pytest.approx(0.033, abs=0.0005)
    assert (gain["dropout"] > gain["adareg"]).loc[:480].all()
    for page in ("README.md", "docs/worth.md"):
        assert "0.02 to 0.03 more of the variance" in text_of(page)


def test_what_is_said_of_the_appendix_holds():
    store = Store(ROOT / "results/records")
    rules = store.frame("mnist-rules").pivot_table("test_accuracy", "n", "method")
    ours, plain = rules["adareg+weight-decay"], rules["weight-decay"]
    assert (ours - plain).abs().max() < 0.001
    seeds = 100 * store.frame("mnist-rules").pivot_table("test_accuracy", ["n", "seed"], "method")
    change = (seeds["adareg"] - seeds["none"]).groupby("n")
    assert change.mean()[600] == pytest.approx(0, abs=0.05)
    error = change.std() / change.count() ** 0.5
    below, error = rounded(-change.mean()[6000], 2), rounded(error[6000], 2)
    words = f"{below} ± {error} points below it at n = 6,000"
    assert words in text_of("docs/worth.md")
    layers = store.frame("mnist-layers").pivot_table("test_accuracy", "n", "method")
    assert (layers[["adareg-fc", "adareg-all"]].max(axis=1) < layers["none"]).all()
    pairs = store.frame("mnist-combinations").pivot_table("test_accuracy", ["batch", "n"], "method")
    assert (pairs["adareg+batch-norm"] - pairs["batch-norm"]).mean() < 0


def test_what_is_said_of_sarcos_holds_at_every_size():
    frame = Store(ROOT / "results/records").frame("sarcos")
    assert len(frame) == 4 * 6 * 10
    assert sorted(frame["n"].unique()) == [100, 400, 1600, 3483]
    columns = ["test_explained_variance", "stable_rank", "spectral_norm"]
    table = frame.pivot_table(index="n", columns="method", values=columns)
    explained = table["test_explained_variance"]
    assert (explained["adareg"] - explained["none"]).abs().max() < 0.001
    assert (explained[["dropout", "weight-decay"]].max(axis=1) < explained["none"]).all()
    for column in columns[1:]:
        assert (table[column]["adareg"] < table[column]["none"]).all()
    for page in ("README.md", "docs/worth.md"):
        assert "within 0.001" in text_of(page)


def test_what_is_said_of_choosing_by_evidence_holds():
    rows = json.loads((ROOT / "results/bench/evidence-depths.json").read_text())["rows"]
    best, chosen, one_layer = [], [], []
    for row in rows:
        evidence, loss = (np.mean(row[key], axis=1) for key in ("evidence", "loss"))
        best.append(loss.argmin())
        chosen.append(evidence.argmax())
        one_layer.append(loss[1] / loss.min())
        row["excess"] = loss[chosen[-1]] / loss.min()
    assert np.mean(chosen) < np.mean(best)
    assert np.mean(one_layer) < np.mean([row["excess"] for row in rows])
    text = text_of("docs/evidence.md")
    assert "It leans towards shallow networks" in text
    assert "is no better than one hidden layer everywhere" in text
    learned = json.loads((ROOT / "results/bench/evidence.json").read_text())["constants"]["learned"]
    assert all(len(set(scores)) == 1 for scores in learned["score"].values())
    assert "0.9 and 0.999 give the same networks" in text


def test_tables_in_the_documents_are_those_of_the_records():
    """``python tools/tables.py`` writes them."""
    pages = runpy.run_path(str(ROOT / "tools/tables.py"))["pages"]()
    assert len(pages) == 5
    for page, text in pages.items():
        assert page.read_text() == text


def test_what_is_said_of_the_small_data_benchmark_holds():
    figures = runpy.run_path(str(ROOT / "tools/tables.py"))
    records = figures["Records"].of(Store(ROOT / "results/records"))
    rows = figures["smalldata"].frame(figures["smalldata"].studied(records))
    ranks = figures["smalldata"].average_ranks(rows, "quality").mean()
    best = list(ranks.sort_values().index)
    assert set(best[:2]) == {"dropout", "evidence+dropout"}
    assert best[2] == "evidence"
    text = text_of("README.md")
    assert "of ten methods on eight small data sets it ranks third, behind tuned dropout" in text
    names = {name.removeprefix("smalldata-") for name in EXPERIMENTS if "smalldata-" in name}
    assert names == set(rows["data"])
    assert (len(ranks), len(names)) == (10, 8)
    verdicts = [judgement.verdict for judgement in figures["judge"](records).values()]
    assert "it met one of the six targets" in text
    assert (len(verdicts), verdicts.count("met")) == (6, 1)
    largest = rows.groupby("data")["n"].max()
    assert f"n from {rows['n'].min()} to {rows['n'].max():,}" in text_of("docs/smalldata.md")
    assert f"n = {largest['cifar10']} alone" in text_of("docs/smalldata.md")
    assert f"up to n = {largest['mnist']}" in text_of("docs/smalldata.md")
    assert (rows.groupby(["data", "n", "method"])["seed"].nunique() == 8).all()
