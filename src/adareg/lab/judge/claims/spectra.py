"""Fig. 4: stable rank and spectral norm of the last layer."""

from __future__ import annotations

from functools import partial

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import Claim, Judgement
from adareg.lab.judge.claims.quantities import SPECTRAL_NORM, STABLE_RANK, Quantity
from adareg.lab.judge.selection import Records

OTHERS = ("none", "weight-decay")
METHODS = (*OTHERS, "adareg")
BATCH = 256


def experiments_of(data: str) -> tuple[str, str]:
    """Return the experiments that have the networks of a data set."""
    return f"{data}-spectra", f"{data}-generalization"


def smaller(records: Records, data: str, quantity: Quantity) -> Judgement:
    """Smaller with AdaReg than with no regularizer and than with weight decay, at every size.

    At batch size 256. A reduction counts from 1 % on; shares of all comparisons, two for each
    size, by ``base``'s rule.
    """
    experiments = experiments_of(data)
    return comparison.compare(records, experiments, quantity, OTHERS, batch=BATCH, together=False)


SPECTRA = [
    Claim(
        key=f"{data}-{key}",
        title=f"AdaReg lowers the {quantity.name} on {name}, more than weight decay",
        paper=text,
        where=f"Fig. 4 {panel}",
        experiments=experiments_of(data),
        judge=partial(smaller, data=data, quantity=quantity),
    )
    for data, name, panels in (("mnist", "MNIST", "ab"), ("cifar", "CIFAR-10", "cd"))
    for key, quantity, panel, text in (
        (
            "stable-rank",
            STABLE_RANK,
            panels[0],
            "A significant reduction compared with weight decay (and with no regularizer), "
            "consistent over all training sizes.",
        ),
        (
            "spectral-norm",
            SPECTRAL_NORM,
            panels[1],
            "Weight decay and AdaReg both reduce it in all settings, AdaReg more.",
        ),
    )
]
