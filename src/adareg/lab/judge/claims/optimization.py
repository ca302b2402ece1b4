"""Fig. 3: where training ends, and what happens when a block does."""

from __future__ import annotations

import math
from functools import partial

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import Claim, Judgement
from adareg.lab.judge.claims.quantities import TEST_LOSS, TRAIN_LOSS, Quantity
from adareg.lab.judge.selection import Records
from adareg.lab.run.records import Record

EXPERIMENT = "mnist-optimization"

#: Epochs after the end of a block in which a peak is looked for.
WINDOW = 5


def better_optimum(records: Records, quantity: Quantity) -> Judgement:
    """The loss after the last epoch, with AdaReg against without, in all four settings of Fig. 3.

    A loss that is lower by 1 % counts; shares of settings by ``base``'s rule. It is the
    cross-entropy alone, without the penalty.
    """
    return comparison.compare(records, [EXPERIMENT], quantity, ["none"])


def peak(record: Record) -> float:
    """The highest training loss in the epochs after the first block, over the loss at its end."""
    config, losses = record["config"], record["curves"]["train_loss"]
    if config["evaluate_every"] != 1 or config["blocks"] < 2:
        return math.nan
    end = config["epochs"]
    return float(max(losses[end : end + WINDOW]) / losses[end - 1])


PEAK = Quantity(
    name="rise of the train loss after the first block",
    measure=peak,
    unit="%",
    relevant=10.0,
    relative=True,
    digits=1,
)


def peaks(records: Records) -> Judgement:
    """The training loss jumps where the first block ends, with AdaReg more than without.

    The largest loss of the five epochs after the first block over the loss at its end, with AdaReg
    against without: a ratio that is higher by 10 % counts (less cannot be seen on the paper's
    logarithmic axis); shares of settings by ``base``'s rule.
    """
    return comparison.compare(records, [EXPERIMENT], PEAK, ["none"])


OPTIMIZATION = [
    Claim(
        key=f"optimum-{part}",
        title=f"AdaReg ends at a lower {part} loss",
        paper=text,
        where="Fig. 3",
        experiments=(EXPERIMENT,),
        judge=partial(better_optimum, quantity=quantity),
    )
    for part, quantity, text in (
        ("train", TRAIN_LOSS, "In all cases AdaReg converges to better local optima."),
        ("test", TEST_LOSS, "In all cases the loss on the test set is smaller with AdaReg."),
    )
]
OPTIMIZATION.append(
    Claim(
        key="optimum-peaks",
        title="The loss peaks where blocks change",
        paper="Several unstable peaks around epoch 50, where the covariances are updated.",
        where="Fig. 3",
        experiments=(EXPERIMENT,),
        judge=peaks,
    )
)
