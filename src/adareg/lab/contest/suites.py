"""The three suites: which tables, which splits, what is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adareg.lab.contest import cells


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that methods are compared by.

    Attributes:
        label: for people.
        more: whether more of it is better.
        relative: whether it is compared with the best method by a ratio; else by a difference.
        digits: how many to show.
    """

    label: str
    more: bool = False
    relative: bool = True
    digits: int = 3


#: The suite whose tables are cells; its results are shown with the benchmark's.
CELLS = "smalldata"

MEASURES: dict[str, Measure] = {
    "rmse": Measure(label="RMSE"),
    "log_likelihood": Measure(label="log likelihood", more=True, relative=False),
    "arrmse": Measure(label="aRRMSE"),
    "error": Measure(label="errors, %", digits=1),
    "log_loss": Measure(label="log loss", relative=False),
    "brier": Measure(label="Brier score", relative=False),
    "calibration": Measure(label="calibration error", relative=False),
}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tables of one kind.

    Attributes:
        what: one line for people.
        sets: at each scale, the keys of tables in ``data.DATASETS``.
        measures: keys of ``MEASURES``, what counts first; none if it is shown elsewhere.
    """

    what: str
    sets: dict[str, tuple[str, ...]]
    measures: tuple[str, ...]


SUITES: dict[str, Suite] = {
    "regression": Suite(
        what="one target; the public splits of the UCI benchmark",
        sets={
            "smoke": ("embedded-diabetes",),
            "small": ("embedded-diabetes", "embedded-friedman"),
            "paper": (
                "uci-boston",
                "uci-concrete",
                "uci-energy",
                "uci-kin8nm",
                "uci-naval",
                "uci-power",
                "uci-wine",
                "uci-yacht",
            ),
        },
        measures=("rmse", "log_likelihood"),
    ),
    "multi-target": Suite(
        what="several targets at once; five folds",
        sets={
            "smoke": ("embedded-linnerud",),
            "small": ("embedded-linnerud",),
            "paper": (
                "mulan-edm",
                "mulan-enb",
                "mulan-jura",
                "mulan-oes97",
                "mulan-scpf",
                "mulan-slump",
                "mulan-wq",
            ),
        },
        measures=("arrmse",),
    ),
    "classification": Suite(
        what="classes; five stratified folds",
        sets={
            "smoke": ("embedded-iris",),
            "small": ("embedded-wine", "embedded-cancer", "embedded-iris"),
            "paper": (
                "arff-column3c",
                "arff-credit-g",
                "arff-dermatology",
                "arff-ecoli",
                "arff-glass",
                "arff-heart-statlog",
                "arff-lymph",
                "arff-vehicle",
            ),
        },
        measures=("error", "log_loss", "brier", "calibration"),
    ),
}

SUITES[CELLS] = Suite(
    what="the cells of the small-data benchmark, for linear models beside its networks",
    sets={"smoke": (), "small": (), "paper": cells.CELLS},
    measures=(),
)

#: How many splits of each table are used at a scale.
SPLITS = {"smoke": 1, "small": 1, "paper": 20}

#: Tables that were used to choose something in the library, and what. The others were not.
DEVELOPMENT: dict[str, str] = {
    **dict.fromkeys(
        ("uci-boston", "uci-concrete", "uci-energy", "uci-yacht", "embedded-friedman"),
        "the regressor's network, its steps and its error bars",
    ),
    **dict.fromkeys(
        ("mulan-edm", "mulan-enb", "mulan-jura", "mulan-scpf", "mulan-slump", "mulan-wq"),
        "the regressor's network, the noise of each target and which likelihoods are tried",
    ),
    **dict.fromkeys(
        (
            "arff-column3c",
            "arff-ecoli",
            "arff-glass",
            "arff-heart-statlog",
            "arff-lymph",
            "arff-vehicle",
            "embedded-iris",
        ),
        "the classifier's network, its prior and its probabilities",
    ),
    **dict.fromkeys(
        ("embedded-diabetes", "embedded-wine", "embedded-cancer"),
        "the constants of the evidence rule, and the estimators",
    ),
}


def choose(scale: str, only: Iterable[str] = ()) -> dict[str, list[str]]:
    """The tables of a scale by suite, all or those that some names stand for.

    Args:
        scale: a key of ``SPLITS``.
        only: names of suites, of tables, or what a table's name begins with: ``uci``.

    Raises:
        ValueError: a name stands for nothing.
    """
    names = list(only)
    chosen: dict[str, list[str]] = {}
    used = set()
    for title, suite in SUITES.items():
        for table in suite.sets[scale]:
            found = {n for n in names if n in (title, table) or table.startswith(f"{n}-")}
            used |= found
            if found or not names:
                chosen.setdefault(title, []).append(table)
    if unknown := [name for name in names if name not in used]:
        known = [*SUITES, *(table for suite in SUITES.values() for table in suite.sets[scale])]
        raise ValueError(
            f"--only {','.join(unknown)}: no such suite or table at scale {scale}; there are: "
            f"{', '.join(known)}"
        )
    return chosen
