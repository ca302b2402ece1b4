"""The paper's main claims once more, on the data that comes with the package."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from adareg.lab.judge.claims import comparison, spectra
from adareg.lab.judge.claims.base import Claim, Judgement
from adareg.lab.judge.claims.quantities import (
    ACCURACY,
    EXPLAINED,
    SPECTRAL_NORM,
    STABLE_RANK,
    Quantity,
)
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


def smaller(records: Records, quantity: Quantity, other: str) -> Judgement:
    """Digits: smaller with AdaReg than with the other method, at every training size.

    A reduction counts from 1 % on; shares of sizes by ``base``'s rule.
    """
    return comparison.compare(records, ["digits"], quantity, [other])


EMBEDDED = [
    Claim(
        key="digits-generalization",
        title="AdaReg improves accuracy on digits",
        paper="On MNIST: AdaReg improves generalization at every training size.",
        where="as Fig. 2",
        experiments=("digits",),
        judge=generalization,
        own=True,
    ),
    Claim(
        key="digits-tasks",
        title="AdaReg explains more of 32 tasks on halves of digits",
        paper="On SARCOS: a consistent improvement on all tasks.",
        where="as Table 1",
        experiments=("digits-completion",),
        judge=tasks,
        own=True,
    ),
    *(
        Claim(
            key=spectra.key_of("digits", quantity, "adareg", other),
            title=spectra.title_of(quantity, "adareg", other, "digits"),
            paper=f"On MNIST: {text[0].lower()}{text[1:]}",
            where="as Fig. 4",
            experiments=("digits",),
            judge=partial(smaller, quantity=quantity, other=other),
            own=True,
        )
        for quantity, other, text in (
            (STABLE_RANK, "none", "Lower with AdaReg."),
            (STABLE_RANK, "weight-decay", "A significant reduction compared with weight decay."),
            (SPECTRAL_NORM, "none", "Lower with AdaReg in all settings."),
            (SPECTRAL_NORM, "weight-decay", "AdaReg plays a more significant role."),
        )
    ),
]
