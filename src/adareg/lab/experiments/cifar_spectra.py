"""Fig. 4 (fig:rank_norm), panels c and d: stable rank and spectral norm on CIFAR-10."""

from adareg.lab.config import Config
from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.experiments.cifar_generalization import SIZES


def cells(scale: str) -> list[Config]:
    """Every training size at batch size 256: the networks of the generalization study."""
    if scale == "smoke":
        return grid("cifar10", [60], [256], epochs=1, test=100, augment=True)
    if scale == "small":
        return grid("cifar10", [250, 1000], [256], epochs=10, test=1000, augment=True)
    return grid("cifar10", SIZES, [256], augment=True)


EXPERIMENT = Experiment(
    name="cifar-spectra",
    figure="Fig. 4 c, d",
    what="CIFAR-10 stable rank and spectral norm of the softmax layer",
    methods=("none", "weight-decay", "adareg"),
    seeds={"smoke": 1, "small": 2, "paper": 5},
    cells=cells,
)
