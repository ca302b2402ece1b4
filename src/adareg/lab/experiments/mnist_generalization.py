"""Fig. 2 (fig:multiclass), panels a and b: MNIST accuracy as the training set grows."""

from adareg.lab.experiments.base import COMPARED, Experiment, grid
from adareg.lab.train.config import Config

#: 60 samples, doubled ten times; the last is the whole training set.
SIZES = (*(60 * 2**k for k in range(10)), 60_000)


def cells(scale: str) -> list[Config]:
    """Return both batch sizes at every training size."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=1, test=200)
    if scale == "small":
        return grid("mnist", [60, 240, 960], [256], epochs=15, test=2000)
    return grid("mnist", SIZES, [256, 2048])


EXPERIMENT = Experiment(
    name="mnist-generalization",
    figure="Fig. 2 a, b",
    what="MNIST test accuracy of six methods as the training set grows, batch 256 and 2048",
    methods=COMPARED,
    seeds={"smoke": 2, "small": 3, "paper": 10},
    cells=cells,
)
