"""Fig. 3 (fig:mnist_opt): training and test loss, epoch by epoch."""

from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """600 and 6,000 samples, both batch sizes, evaluated after every epoch."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=2, test=200, evaluate_every=1)
    if scale == "small":
        return grid("mnist", [600], [256], epochs=20, test=1000, evaluate_every=1)
    return grid("mnist", [600, 6000], [256, 2048], evaluate_every=1)


EXPERIMENT = Experiment(
    name="mnist-optimization",
    figure="Fig. 3",
    what="MNIST loss trajectories on training and test data, with and without AdaReg",
    methods=("none", "adareg"),
    seeds={"smoke": 1, "small": 2, "paper": 5},
    cells=cells,
)
