"""Every experiment, a file each. To add one, write a file like the others and list it here."""

from __future__ import annotations

from adareg.lab.experiments import (
    cifar_generalization,
    cifar_spectra,
    digits,
    digits_completion,
    mnist_combinations,
    mnist_correlations,
    mnist_covariances,
    mnist_generalization,
    mnist_layers,
    mnist_optimization,
    mnist_rules,
    mnist_spectra,
    sarcos,
)
from adareg.lab.experiments.base import COMPARED, SCALES, Experiment

__all__ = ["COMPARED", "EXPERIMENTS", "SCALES", "Experiment", "find"]

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        digits,
        digits_completion,
        mnist_generalization,
        mnist_optimization,
        mnist_spectra,
        mnist_correlations,
        mnist_combinations,
        mnist_layers,
        mnist_covariances,
        mnist_rules,
        cifar_generalization,
        cifar_spectra,
        sarcos,
    )
}


def find(name: str) -> Experiment:
    """The experiment of that name, or ``ValueError``."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
