"""Fig. 4 (fig:rank_norm), panels a and b: stable rank and spectral norm on MNIST."""

from adareg.lab.experiments import mnist_generalization
from adareg.lab.experiments.base import Experiment
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """The networks of the generalization study at batch size 256."""
    return [config for config in mnist_generalization.cells(scale) if config.batch == 256]


EXPERIMENT = Experiment(
    name="mnist-spectra",
    figure="Fig. 4 a, b",
    what="MNIST stable rank and spectral norm of the softmax layer",
    methods=("none", "weight-decay", "adareg"),
    seeds={"smoke": 2, "small": 3, "paper": 5},
    cells=cells,
)
