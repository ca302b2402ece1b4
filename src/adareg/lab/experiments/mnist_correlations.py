"""Fig. 5 (fig:correlation): correlations between the rows of MNIST's softmax layer."""

from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """600 and 60,000 samples at batch size 256."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=1, test=200)
    if scale == "small":
        return grid("mnist", [600], [256], epochs=20, test=2000)
    return grid("mnist", [600, 60_000], [256])


EXPERIMENT = Experiment(
    name="mnist-correlations",
    figure="Fig. 5",
    what="MNIST correlations of the softmax layer's rows, with and without AdaReg",
    methods=("none", "adareg"),
    seeds={"smoke": 1, "small": 3, "paper": 5},
    cells=cells,
)
