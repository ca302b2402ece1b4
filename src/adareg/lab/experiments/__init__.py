"""Every experiment, a file each. To add one, write a file like the others and list it here."""

from __future__ import annotations

from collections.abc import Iterable

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
    smalldata,
)
from adareg.lab.experiments.base import COMPARED, SCALES, Experiment

__all__ = ["COMPARED", "EXPERIMENTS", "GROUPS", "SCALES", "Experiment", "find_all"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        digits.EXPERIMENT,
        digits_completion.EXPERIMENT,
        mnist_generalization.EXPERIMENT,
        mnist_optimization.EXPERIMENT,
        mnist_spectra.EXPERIMENT,
        mnist_correlations.EXPERIMENT,
        mnist_combinations.EXPERIMENT,
        mnist_layers.EXPERIMENT,
        mnist_covariances.EXPERIMENT,
        mnist_rules.EXPERIMENT,
        cifar_generalization.EXPERIMENT,
        cifar_spectra.EXPERIMENT,
        sarcos.EXPERIMENT,
        *smalldata.EXPERIMENTS,
    )
}

#: Names that stand for several experiments.
GROUPS: dict[str, tuple[Experiment, ...]] = {"smalldata": smalldata.EXPERIMENTS}


def find_all(names: Iterable[str]) -> list[Experiment]:
    """The experiments that some names stand for, each once, or ``ValueError``."""
    found: dict[str, Experiment] = {}
    for name in names:
        if name not in EXPERIMENTS and name not in GROUPS:
            known = ", ".join((*EXPERIMENTS, *GROUPS))
            raise ValueError(f"unknown experiment {name!r}; there are: {known}")
        for experiment in GROUPS.get(name, ()) or (EXPERIMENTS[name],):
            found[experiment.name] = experiment
    return list(found.values())
