"""Trials of the contest that never took place, for tests of what reads them."""

from pathlib import Path

from adareg.lab.contest.results import Results

#: Errors of three methods on three tables, whose ranks are easy: 1, 2, 3 in some order.
ERRORS = {
    "uci-yacht": {"evidence": 1.0, "forest": 2.0, "ridge-cv": 3.0},
    "uci-energy": {"evidence": 2.0, "forest": 1.0, "ridge-cv": 3.0},
    "uci-power": {"evidence": 2.0, "forest": 1.0, "ridge-cv": 3.0},
}


def fill_tables(root, errors=ERRORS, splits=2):
    """Record trials of the suite of regression; the likelihood is best where the error is worst."""
    results = Results(Path(root))
    for table, methods in errors.items():
        for method, error in methods.items():
            for split in range(splits):
                results.add(trial(table, method, split, error + 0.1 * split))
    return results


def trial(table, method, split, error, suite="regression"):
    """The record of a trial."""
    return {
        "format": 1,
        "suite": suite,
        "table": table,
        "split": split,
        "method": method,
        "settings": "",
        "rows": 100,
        "inputs": 5,
        "outputs": 1,
        "seconds": {"fit": 1.0, "noise": 0.5, "predict": 0.1},
        "scores": {"rmse": error, "log_likelihood": error / 10, "coverage": 0.9},
        "warnings": {},
        "environment": {"device": "abacus"},
    }
