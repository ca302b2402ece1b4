"""The paper's main claims once more, on the data that comes with the package."""

from __future__ import annotations

from dataclasses import replace

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import Claim, Judgement, both
from adareg.lab.judge.claims.quantities import ACCURACY, EXPLAINED, SPECTRAL_NORM, STABLE_RANK
from adareg.lab.judge.selection import Records

#: One of the 600 test images is 0.17 points: what counts here is larger than on MNIST.
DIGITS_ACCURACY = replace(ACCURACY, relevant=0.5)


def generalization(records: Records) -> Judgement:
    """Digits: AdaReg against no regularizer at every training size.

    A gain counts from 0.5 points of test accuracy on; shares of sizes by ``base``'s rule.
    """
    return comparison.compare(records, ["digits"], DIGITS_ACCURACY, ["none"])


def tasks(records: Records) -> Judgement:
    """Digits completed, 32 regression tasks: AdaReg against no regularizer at every size.

    A gain counts from 0.005 of explained variance on; shares of sizes by ``base``'s rule.
    """
    return comparison.compare(records, ["digits-completion"], EXPLAINED, ["none"])


def spectra(records: Records) -> Judgement:
    """Digits: stable rank and spectral norm against no regularizer and weight decay, every size.

    A reduction counts from 1 % on; for each of the two, shares of all comparisons by ``base``'s
    rule. Both reproduced (or not): so is the claim; otherwise partly.
    """
    parts = [
        comparison.compare(records, ["digits"], quantity, ("none", "weight-decay"), together=False)
        for quantity in (STABLE_RANK, SPECTRAL_NORM)
    ]
    measured = dict.fromkeys(part.measured for part in parts)
    missing = dict.fromkeys(command for part in parts for command in part.missing)
    return Judgement(
        verdict=both(part.verdict for part in parts),
        measured=" ".join(measured),
        effects=tuple(effect for part in parts for effect in part.effects),
        missing=tuple(missing),
    )


EMBEDDED = [
    Claim(
        key="digits-generalization",
        title="On our embedded digits: AdaReg improves accuracy",
        paper="On MNIST: AdaReg improves generalization at every training size.",
        where="as Fig. 2",
        experiments=("digits",),
        judge=generalization,
    ),
    Claim(
        key="digits-tasks",
        title="On our embedded digits: AdaReg explains more of many tasks",
        paper="On SARCOS: a consistent improvement on all tasks.",
        where="as Table 1",
        experiments=("digits-completion",),
        judge=tasks,
    ),
    Claim(
        key="digits-spectra",
        title="On our embedded digits: smaller stable rank and spectral norm",
        paper="On MNIST: smaller than with no regularizer and with weight decay at every size.",
        where="as Fig. 4",
        experiments=("digits",),
        judge=spectra,
    ),
]
