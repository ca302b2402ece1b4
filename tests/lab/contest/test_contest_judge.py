"""Ranks, distances and pairs of scores that are known, and the page and picture of them."""

import math

import pandas as pd
import pytest

from adareg.lab.contest import figure, judge, page
from adareg.lab.contest.command import summary
from adareg.lab.contest.suites import DEVELOPMENT, SUITES

#: Errors of three methods on three tables; forest was not tried on the last one.
ERRORS = {
    "arff-glass": {"evidence": 10.0, "forest": 20.0, "svm-cv": 40.0},
    "arff-credit-g": {"evidence": 0.0, "forest": 10.0, "svm-cv": 5.0},
    "arff-dermatology": {"evidence": 8.0, "forest": 4.0, "svm-cv": 4.0},
}


def rows_of(errors, splits=2):
    return pd.DataFrame(
        {
            "suite": "classification",
            "table": table,
            "split": split,
            "method": method,
            "error": error + split - (splits - 1) / 2,
            "log_loss": error / 100,
            "brier": error / 200,
            "calibration": 0.1,
            "fit_seconds": 2.0,
            "noise_seconds": 0.0,
            "predict_seconds": 0.1,
            "device": "x86_64",
        }
        for table, methods in errors.items()
        for method, error in methods.items()
        for split in range(splits)
    )


def test_ranks_by_hand():
    found = judge.standing(rows_of(ERRORS), "log_loss")
    assert found.ranks.loc["arff-glass"].to_dict() == {"evidence": 1, "forest": 2, "svm-cv": 3}
    assert found.ranks.loc["arff-dermatology"].to_dict() == {
        "evidence": 3,
        "forest": 1.5,
        "svm-cv": 1.5,
    }
    assert found.average.to_dict() == pytest.approx(
        {"evidence": 5 / 3, "forest": 6.5 / 3, "svm-cv": 6.5 / 3}
    )
    assert found.distance["evidence"] == pytest.approx((0 + 0 + 0.04) / 3)
    assert found.distance["svm-cv"] == pytest.approx((0.3 + 0.05 + 0) / 3)


def test_ratios_are_geometric_and_of_no_less_than_a_little():
    found = judge.standing(rows_of(ERRORS), "error")
    assert found.distance["evidence"] == pytest.approx(2 ** (1 / 3))
    ratios = 2 * (10 / judge.LEAST_ERROR) * 1
    assert found.distance["forest"] == pytest.approx(ratios ** (1 / 3))


def test_more_is_better_where_it_is():
    rows = rows_of(ERRORS).rename(columns={"log_loss": "log_likelihood"})
    found = judge.standing(rows, "log_likelihood")
    assert found.ranks.loc["arff-glass", "svm-cv"] == 1
    assert found.distance["evidence"] == pytest.approx((0.3 + 0.1 + 0) / 3)


def test_only_what_all_share_is_compared():
    rows = rows_of(ERRORS)
    lacking = rows[~((rows["method"] == "forest") & (rows["table"] == "arff-dermatology"))]
    assert list(judge.compare(lacking, "error").columns) == ["evidence", "svm-cv"]
    once = rows[~((rows["method"] == "forest") & (rows["split"] == 1))]
    table = judge.compare(once, "error")
    assert table.shape == (3, 3)
    assert set(table.index.get_level_values("split")) == {0}


def test_one_method_has_no_rank():
    assert judge.standing(rows_of({"arff-glass": {"forest": 1.0}}), "error") is None


def test_tables_that_were_used_to_choose_are_set_apart():
    assert set(judge.unseen(rows_of(ERRORS))["table"]) == {"arff-credit-g", "arff-dermatology"}
    known = {table for suite in SUITES.values() for names in suite.sets.values() for table in names}
    assert DEVELOPMENT.keys() <= known
    for suite in SUITES.values():
        assert set(suite.sets["paper"]) - DEVELOPMENT.keys()


def test_pairs_by_hand():
    rows = pd.DataFrame(
        {
            "table": "t",
            "split": split,
            "method": method,
            "rmse": value,
        }
        for method, values in {"evidence": (1, 2, 6), "other": (2, 4, 5)}.items()
        for split, value in enumerate(values)
    )
    (pair,) = judge.pairs(rows, "rmse", "evidence", "other")
    assert (pair.other, pair.gain, pair.wins, pair.splits) == (11 / 3, pytest.approx(2 / 3), 2, 3)
    gains = (1, 2, -1)
    variance = sum((g - 2 / 3) ** 2 for g in gains) / 2
    assert pair.error == pytest.approx(math.sqrt(variance / 3))
    assert pair.verdict == "alike"
    assert judge.pairs(rows, "rmse", "evidence", "nobody") == []


@pytest.mark.parametrize(
    ("gain", "verdict"), [(1.1, "better"), (0.9, "alike"), (-0.9, "alike"), (-1.1, "worse")]
)
def test_verdicts_of_pairs(gain, verdict):
    assert judge.Pair("t", 1.0, gain, 1.0, 1, 2).verdict == verdict


def regression_rows():
    return pd.DataFrame(
        {
            "suite": "regression",
            "table": table,
            "split": split,
            "method": method,
            "rmse": rmse,
            "log_likelihood": -1.0,
            "coverage": 0.9,
            "fit_seconds": 1.0,
            "noise_seconds": 0.5,
            "predict_seconds": 0.1,
        }
        for table in ("uci-yacht", "uci-power")
        for method, rmse in {"evidence": 0.1, "forest": 9.0}.items()
        for split in range(3)
    )


def test_the_published_dropout_is_paired_with_what_was_tried():
    every = judge.with_published(regression_rows())
    published = every[every["method"] == judge.PUBLISHED]
    assert len(published) == 6
    assert set(published["suite"]) == {"regression"}
    yacht = published[(published["table"] == "uci-yacht") & (published["split"] == 0)]
    assert yacht["rmse"].item() == pytest.approx(0.885647)
    assert yacht["log_likelihood"].item() == pytest.approx(-1.311006)
    assert len(judge.with_published(rows_of(ERRORS))) == len(rows_of(ERRORS))


def test_published_means_are_those_of_the_article():
    """Table 1 of Gal & Ghahramani, in a later version that they give with their code."""
    every = pd.DataFrame(
        {"suite": "regression", "table": table, "split": split, "method": "x"}
        for table in SUITES["regression"].sets["paper"]
        for split in range(20)
    )
    published = judge.with_published(every).query("method == @judge.PUBLISHED")
    means = published.groupby("table")["rmse"].agg(["mean", "count"])
    assert set(means["count"]) == {20}
    known = {"uci-boston": 2.904, "uci-concrete": 4.826, "uci-yacht": 0.666, "uci-wine": 0.622}
    for table, mean in known.items():
        assert means.loc[table, "mean"] == pytest.approx(mean, abs=5e-4)


def test_the_page_says_what_was_measured():
    text = page.results_as_markdown(regression_rows())
    assert "12 trials on one thread each, 0.0 hours of processor time" in text
    assert "These were not used to choose anything: uci-power." in text
    assert "| **evidence** | 1.0 (1.00) |" in text
    assert "| uci-power ° | **0.100 ± 0.000** | 9.000 ± 0.000 |" in text
    assert "| **mean** | **90.0** | **90.0** |" in text
    assert "better by more than one standard error on 2 of 2 tables, worse on 0" in text
    free = text[text.index("Tables that were not used to choose anything") :]
    assert "(1: uci-power)" in free


def test_one_split_has_no_standard_error():
    rows = regression_rows()
    text = page.results_as_markdown(rows[rows["split"] == 0])
    assert "nan" not in text
    assert "| uci-power ° | **0.100** | 9.000 |" in text


def test_the_page_of_classes_names_all_measures():
    text = page.results_as_markdown(rows_of(ERRORS))
    assert (
        "| method | errors, % | log loss | Brier score | calibration error | processor seconds |"
        in text
    )
    assert "Friedman's test" in text
    assert page.results_as_markdown(rows_of({})) == "There are no records yet.\n"


def test_places_are_those_on_all_tables_and_on_those_that_nobody_looked_at():
    """Average ranks of the three methods: 5/3, 13/6 and 13/6; and 2, 9/4 and 7/4."""
    everywhere = "1st of 3 by errors, 1st of 3 by log loss (3 tables)"
    unseen = "2nd of 3 by errors, 2nd of 3 by log loss (2 tables)"
    text = page.places_as_markdown(rows_of(ERRORS))
    assert text.splitlines()[2:] == [f"| classification | {everywhere} | {unseen} |"]
    assert page.places_as_markdown(rows_of({})) == "There are no records yet.\n"


def test_cells_of_the_benchmark_are_shown_elsewhere():
    rows = regression_rows().assign(suite="smalldata")
    assert page.results_as_markdown(rows) == "There are no records yet.\n"
    assert judge.suites_of(pd.concat([rows, rows_of(ERRORS)])) == ["classification"]


def test_rows_of_markdown_tables_are_as_long_as_their_heads():
    text = page.results_as_markdown(pd.concat([regression_rows(), rows_of(ERRORS)]))
    width = 0
    for line in text.splitlines():
        cells = line.count("|")
        assert not cells or cells == (width or cells)
        width = cells


def test_the_picture_shows_every_method_and_measure():
    svg = figure.draw(pd.concat([regression_rows(), rows_of(ERRORS)]))
    for text in ("regression: RMSE", "classification: log loss", "SVM-CV", "dropout (published)"):
        assert text in svg
    with pytest.raises(ValueError, match="nothing to draw"):
        figure.draw(rows_of({"arff-glass": {"forest": 1.0}}))


def test_the_terminal_is_told_the_ranks():
    first, second = summary(rows_of(ERRORS))
    assert first == (
        "classification, average ranks by errors, %: evidence 1.7, forest 2.2, SVM-CV 2.2"
    )
    assert "log loss" in second
