"""Fig. 4 (fig:rank_norm), panels c and d: stable rank and spectral norm on CIFAR-10."""

from adareg.lab.experiments import cifar_generalization
from adareg.lab.experiments.base import Experiment
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """The networks of the generalization study at batch size 256."""
    return [config for config in cifar_generalization.cells(scale) if config.batch == 256]


EXPERIMENT = Experiment(
    name="cifar-spectra",
    figure="Fig. 4 c, d",
    what="CIFAR-10 stable rank and spectral norm of the softmax layer",
    methods=("none", "weight-decay", "adareg"),
    seeds={"smoke": 1, "small": 2, "paper": 5},
    cells=cells,
)
