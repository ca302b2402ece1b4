"""Appendix, Fig. 8 (fig:covprior): the learned row and column covariances."""

from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """600 and 60,000 samples at batch size 256, covariances recorded."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=1, test=200, covariances=True)
    if scale == "small":
        return grid("mnist", [600], [256], epochs=20, test=2000, covariances=True)
    return grid("mnist", [600, 60_000], [256], covariances=True)


EXPERIMENT = Experiment(
    name="mnist-covariances",
    figure="Fig. 8",
    what="MNIST: the row and column covariances that AdaReg learns",
    methods=("adareg", "adareg-joint"),
    seeds={"smoke": 1, "small": 1, "paper": 3},
    cells=cells,
)
