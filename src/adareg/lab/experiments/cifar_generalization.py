"""Fig. 2 (fig:multiclass), panels c and d: CIFAR-10 accuracy as the training set grows."""

from adareg.lab.experiments.base import COMPARED, Experiment, grid
from adareg.lab.train.config import Config

SIZES = tuple(range(5_000, 50_001, 5_000))


def cells(scale: str) -> list[Config]:
    """Return both batch sizes at every training size, with the authors' crops and flips."""
    if scale == "smoke":
        return grid("cifar10", [60], [256], epochs=1, test=100, augment=True)
    if scale == "small":
        return grid("cifar10", [250, 1000], [256], epochs=10, test=1000, augment=True)
    return grid("cifar10", SIZES, [256, 2048], augment=True)


EXPERIMENT = Experiment(
    name="cifar-generalization",
    figure="Fig. 2 c, d",
    what="CIFAR-10 test accuracy of six methods as the training set grows, batch 256 and 2048",
    methods=COMPARED,
    seeds={"smoke": 1, "small": 2, "paper": 10},
    cells=cells,
)
