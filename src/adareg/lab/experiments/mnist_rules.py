"""The authors' published code beside the paper: other rules, weight decay, another schedule."""

from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """600 and 6,000 samples in the authors' ten blocks of 30 epochs, batch size 256."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=1, test=200)
    if scale == "small":
        return grid("mnist", [600], [256], blocks=5, epochs=6, test=2000)
    return grid("mnist", [600, 6000], [256], blocks=10, epochs=30)


EXPERIMENT = Experiment(
    name="mnist-rules",
    figure="the authors' code",
    what="MNIST: AdaReg's three rules, and the authors' combination with weight decay",
    methods=(
        "none",
        "weight-decay",
        "adareg",
        "adareg-joint",
        "adareg-official",
        "adareg+weight-decay",
    ),
    seeds={"smoke": 1, "small": 3, "paper": 10},
    cells=cells,
)
