"""The contest's part of the page: first, from trials inside or beside the folder, or alone."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from adareg.cli import app
from adareg.lab.contest import figure, judge
from adareg.lab.report import answers, build
from fakes.records import fill
from fakes.trials import fill_tables
from read_page import Page


@pytest.fixture
def runs(tmp_path):
    fill_tables(tmp_path / "runs/tables")
    return tmp_path / "runs"


def test_ranks_and_scores_are_those_of_the_trials(runs):
    page = Page(build(runs))
    ranks = page.csv("contest").pivot_table("rank", ["measure", "method"], "table")
    assert list(ranks.columns) == ["uci-energy", "uci-power", "uci-yacht"]
    assert ranks.loc["rmse"].to_dict("index") == {  # the published dropout: 0.5, 3.9 and 0.7
        "evidence": {"uci-energy": 3, "uci-power": 2, "uci-yacht": 2},
        "forest": {"uci-energy": 2, "uci-power": 1, "uci-yacht": 3},
        "published-dropout": {"uci-energy": 1, "uci-power": 4, "uci-yacht": 1},
        "ridge-cv": {"uci-energy": 4, "uci-power": 3, "uci-yacht": 4},
    }
    scores = page.text[page.text.index("Regression, RMSE, the lower the better") :]
    row = scores[scores.index("uci-energy") :].split(" uci-power")[0]
    for score in ("2.050 ± 0.050", "1.050 ± 0.050", "3.050 ± 0.050"):
        assert score in row
    assert "mean 90.0 90.0 90.0" in page.text  # inside 95 % intervals
    assert "Regression: 3 tables, 2 splits of each." in page.text


def test_trials_alone_make_a_page(runs):
    page = Page(build(runs))
    assert "Does EvidenceRegressor predict well from small tables?" in page.text
    assert page.text.index("Small tables") < page.text.index("Not recorded: ")
    assert {"answers", "tables", "contest"} <= set(page.ids)
    assert not {"verdicts", "paper", "cost"} & set(page.ids)
    assert "adareg reproduce tables --scale paper" in page.text
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "adareg reproduce digits --scale paper" in page.text


def test_they_come_before_the_paper_from_inside_or_beside(runs):
    fill(runs, "digits")
    inside = Page(build(runs))
    ids = inside.ids
    assert ids.index("answers") < ids.index("contest") < ids.index("paper") < ids.index("digits")
    (runs / "tables").rename(runs.parent / "tables")
    assert Page(build(runs)).csv("contest").equals(inside.csv("contest"))


def test_a_damaged_file_is_named_and_the_rest_is_drawn(runs):
    fill(runs, "digits")
    path = runs / "tables/regression/uci-yacht.jsonl"
    path.write_text("{")
    out = runs.parent / "page.html"
    result = CliRunner().invoke(app, ["report", str(runs), "--out", str(out)])
    assert result.exit_code == 1
    assert f"error: {path} cannot be read" in result.stderr
    page = Page(out.read_text(encoding="utf-8"))
    assert "uci-yacht.jsonl cannot be read" in page.text
    assert "digits.svg" in page.downloads
    assert "contest.svg" not in page.downloads


def standing(errors):
    rows = pd.DataFrame(
        {"suite": "classification", "table": table, "split": 0, "method": method, "error": error}
        for table, methods in errors.items()
        for method, error in methods.items()
    )
    return judge.standing(rows, "error")


@pytest.mark.parametrize(
    ("ours", "others", "place"),
    [
        (1.0, [2.0, 3.0], "1st"),
        (2.0, [1.0, 3.0], "2nd"),
        (3.0, [2.0, 1.0], "3rd"),
        (2.0, [1.0, 2.0], "2nd to 3rd"),
    ],
)
def test_the_place_of_our_estimator(ours, others, place):
    names = ("forest", "svm-cv")
    errors = {"evidence": ours, **dict(zip(names, others, strict=True))}
    assert answers._place(standing({"arff-glass": errors, "arff-lymph": errors})) == place


@pytest.mark.parametrize(("tables", "bars"), [(4, 0), (5, 2)])
def test_few_tables_have_no_intervals(tables, bars):
    found = standing({f"table-{i}": {"evidence": 1.0 + i, "forest": 3.0} for i in range(tables)})
    axes = Figure().subplots()
    figure.panel(axes, found, "black")
    assert sum(line.get_linewidth() == 2 for line in axes.lines) == bars
