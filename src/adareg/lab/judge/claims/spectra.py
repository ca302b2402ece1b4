"""Fig. 4: stable rank and spectral norm of the last layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import Claim, Judgement
from adareg.lab.judge.claims.quantities import SPECTRAL_NORM, STABLE_RANK, Quantity
from adareg.lab.judge.selection import Records

METHODS = ("none", "weight-decay", "adareg")
BATCH = 256


def experiments_of(data: str) -> tuple[str, str]:
    """Return the experiments that have the networks of a data set."""
    return f"{data}-spectra", f"{data}-generalization"


def smaller(
    records: Records,
    experiments: Sequence[str],
    quantity: Quantity,
    method: str = "adareg",
    other: str = "none",
    batch: int | None = None,
) -> Judgement:
    """Smaller with the one method than with the other, at every training size.

    A reduction counts from 1 % on; shares of sizes by ``base``'s rule. On MNIST and CIFAR-10 at
    batch size 256.
    """
    return comparison.compare(records, experiments, quantity, [other], method=method, batch=batch)


#: What the paper says of each quantity: a method, what it is compared with, and its words.
STATEMENTS = (
    (STABLE_RANK, "adareg", "none", "AdaReg leads to weights of lower stable rank."),
    (
        STABLE_RANK,
        "adareg",
        "weight-decay",
        "A significant reduction compared with weight decay, consistent over all training sizes.",
    ),
    (SPECTRAL_NORM, "adareg", "none", "AdaReg reduces the spectral norm in all settings."),
    (
        SPECTRAL_NORM,
        "adareg",
        "weight-decay",
        "Both reduce it, but AdaReg plays a more significant role than weight decay.",
    ),
    (SPECTRAL_NORM, "weight-decay", "none", "Weight decay reduces the norm in all settings."),
)


def key_of(data: str, quantity: Quantity, method: str, other: str) -> str:
    """The key of a claim: with the other methods in it, if it is not AdaReg against none."""
    key = f"{data}-{quantity.name.replace(' ', '-')}"
    if method == "weight-decay":
        return f"{key}-of-decay"
    return f"{key}-decay" if other == "weight-decay" else key


def title_of(quantity: Quantity, method: str, other: str, name: str) -> str:
    """The title of a claim about a data set."""
    who = "AdaReg" if method == "adareg" else "Weight decay"
    than = " more than weight decay does" if other == "weight-decay" else ""
    return f"{who} lowers the {quantity.name} on {name}{than}"


SPECTRA = [
    Claim(
        key=key_of(data, quantity, method, other),
        title=title_of(quantity, method, other, name),
        paper=text,
        where=f"Fig. 4 {panels[quantity.name]}",
        experiments=experiments_of(data),
        judge=partial(
            smaller,
            experiments=experiments_of(data),
            quantity=quantity,
            method=method,
            other=other,
            batch=BATCH,
        ),
    )
    for data, name, panels in (
        ("mnist", "MNIST", {STABLE_RANK.name: "a", SPECTRAL_NORM.name: "b"}),
        ("cifar", "CIFAR-10", {STABLE_RANK.name: "c", SPECTRAL_NORM.name: "d"}),
    )
    for quantity, method, other, text in STATEMENTS
]
