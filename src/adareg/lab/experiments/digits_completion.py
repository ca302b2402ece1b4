"""Many tasks, as in SARCOS, on bundled data: the lower half of a digit from the upper."""

from adareg.lab.experiments.base import COMPARED, Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """Return cells of 60 to 960 images; 32 correlated regression tasks."""
    settings = {"lr": 2e-3, "precision": "float32"}
    if scale == "smoke":
        return grid("digits-completion", [60], [32], epochs=1, test=100, **settings)
    sizes = [60, 120, 240] if scale == "small" else [60 * 2**k for k in range(5)]
    return grid("digits-completion", sizes, [32], epochs=50, **settings)


EXPERIMENT = Experiment(
    name="digits-completion",
    figure="as Tables 1, 2",
    what="8 x 8 digits: explained variance of 32 pixels, predicted from 32 others",
    methods=(*COMPARED, "adareg-joint"),
    seeds={"smoke": 2, "small": 5, "paper": 20},
    cells=cells,
)
