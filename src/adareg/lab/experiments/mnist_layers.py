"""Appendix, Fig. 7 (fig:mnist_diff_layer): AdaReg on the last layer, or on more of them."""

from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.train.config import Config

SIZES = (*(128 * 2**k for k in range(9)), 60_000)


def cells(scale: str) -> list[Config]:
    """The appendix's training sizes at batch size 2048."""
    if scale == "smoke":
        return grid("mnist", [60], [2048], blocks=2, epochs=1, test=200)
    if scale == "small":
        return grid("mnist", [128, 512], [2048], epochs=30, test=2000)
    return grid("mnist", SIZES, [2048])


EXPERIMENT = Experiment(
    name="mnist-layers",
    figure="Fig. 7",
    what="MNIST test accuracy with AdaReg on the last, fully connected, convolution or all layers",
    methods=("none", "adareg", "adareg-fc", "adareg-conv", "adareg-all"),
    seeds={"smoke": 1, "small": 3, "paper": 10},
    cells=cells,
)
