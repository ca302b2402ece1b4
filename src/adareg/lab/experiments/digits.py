"""The generalization study on scikit-learn's bundled digits: nothing to download."""

from adareg.lab.experiments.base import Experiment, grid
from adareg.lab.train.config import Config


def cells(scale: str) -> list[Config]:
    """Return cells of 30 to 960 images, with a smaller batch and a larger step than on MNIST."""
    settings = {"lr": 2e-3, "precision": "float32"}
    if scale == "smoke":
        return grid("digits", [30, 60], [32], epochs=1, test=100, **settings)
    sizes = [30 * 2**k for k in range(4 if scale == "small" else 6)]
    return grid("digits", sizes, [32], epochs=50, **settings)


EXPERIMENT = Experiment(
    name="digits",
    figure="as Fig. 2, 4, 6",
    what="8 x 8 digits: test accuracy of every method as the training set grows",
    methods=(
        "none",
        "decov",
        "weight-decay",
        "adareg+weight-decay",
        "adareg-official",
        "adareg-joint",
        "adareg-fc",
        "adareg",
        "adareg+dropout",
        "dropout",
        "batch-norm",
        "adareg+batch-norm",
    ),
    seeds={"smoke": 2, "small": 10, "paper": 20},
    cells=cells,
)
