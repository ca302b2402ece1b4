"""Fig. 4 (fig:rank_norm), panels a and b: stable rank and spectral norm on MNIST."""

from adareg.lab.config import Config
from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.experiments.mnist_generalization import SIZES


def cells(scale: str) -> list[Config]:
    """Every training size at batch size 256: the networks of the generalization study."""
    if scale == "smoke":
        return grid("mnist", [60], [256], epochs=1, test=200)
    if scale == "small":
        return grid("mnist", [60, 240, 960], [256], epochs=15, test=2000)
    return grid("mnist", SIZES, [256])


EXPERIMENT = Experiment(
    name="mnist-spectra",
    figure="Fig. 4 a, b",
    what="MNIST stable rank and spectral norm of the softmax layer",
    methods=("none", "weight-decay", "adareg"),
    seeds={"smoke": 2, "small": 3, "paper": 5},
    cells=cells,
)
