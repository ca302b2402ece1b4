"""Appendix, Fig. 6 (fig:mnistcombined): AdaReg together with batch norm and with dropout."""

from adareg.lab.experiments.base import Experiment
from adareg.lab.experiments.mnist_generalization import cells

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
