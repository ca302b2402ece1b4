"""Appendix, Fig. 6 (fig:mnistcombined): AdaReg together with batch norm and with dropout."""

from adareg.lab.config import Config
from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.experiments.mnist_generalization import SIZES


def cells(scale: str) -> list[Config]:
    """The cells of the generalization study."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=1, test=200)
    if scale == "small":
        return grid("mnist", [60, 240, 960], [256], epochs=15, test=2000)
    return grid("mnist", SIZES, [256, 2048])


EXPERIMENT = Experiment(
    name="mnist-combinations",
    figure="Fig. 6",
    what="MNIST test accuracy of AdaReg with batch norm and with dropout",
    methods=(
        "none",
        "dropout",
        "batch-norm",
        "adareg",
        "adareg+batch-norm",
        "adareg+dropout",
    ),
    seeds={"smoke": 1, "small": 3, "paper": 10},
    cells=cells,
)
