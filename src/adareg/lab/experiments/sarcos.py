"""Tables 1 and 2 (tab:sarcos, tab:srank) and the last figure: seven torques of a robot arm."""

from adareg.lab.experiments.base import COMPARED, Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """All rows, and fewer: the paper has one size; the effect of a prior is in the small ones.

    Rows are split by blocks of consecutive ones; the paper's own split leaks (``sarcos-paper``).
    """
    if scale == "smoke":
        return grid("sarcos", [60], [256], epochs=2, test=200)
    if scale == "small":
        return grid("sarcos", [100, 400, 1200], [256], epochs=50)
    return grid("sarcos", [100, 400, 1600, 0], [256], epochs=100)


EXPERIMENT = Experiment(
    name="sarcos",
    figure="Tables 1, 2",
    what="SARCOS explained variance of seven tasks, stable rank and spectral norm",
    methods=COMPARED,
    seeds={"smoke": 2, "small": 3, "paper": 10},
    cells=cells,
)
