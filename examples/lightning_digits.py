"""Train a LightningModule on few handwritten digits, without and with AdaReg, and compare.

Run it with ``python examples/lightning_digits.py``; about twenty seconds, or a few with ``--seeds 1
--epochs 20``. It needs lightning, scikit-learn (for its bundled 8 x 8 images), matplotlib and rich;
nothing is downloaded. The module knows nothing of AdaReg: the callback is the only difference. Seed
by seed, every method sees the same images, initial weights and batches; each number is a mean over
seeds ± its standard error.

What to see: the stable rank and the spectral norm of the head go down, most with λ = 1/(2n); the
accuracy changes within its error.
"""

import argparse
import logging
import statistics
import warnings

import lightning
import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

import adareg
from adareg.lightning import AdaRegCallback

METHODS: dict[str, dict[str, float | str] | None] = {
    "none": None,
    "AdaReg 1e-4": {"strength": 1e-4},  # the paper's λ
    "AdaReg auto": {"strength": "auto"},  # λ = 1/(2·images), from the dataloader
    "auto, proximal": {"strength": "auto", "mode": "proximal"},
}


class Classifier(lightning.LightningModule):
    """A module as its author would write it without AdaReg."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU())
        self.head = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the ten digits."""
        return self.head(self.body(x))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The mean loss of a batch."""
        x, y = batch
        return cross_entropy(self(x), y)

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Accuracy in percent and negative log-likelihood."""
        x, y = batch
        logits = self(x)
        self.log("accuracy", 100 * (logits.argmax(1) == y).double().mean())
        self.log("nll", cross_entropy(logits, y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in the paper."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def split(n: int, seed: int) -> tuple[Subset, Subset]:
    """Some training images and all the others for testing, drawn by seed."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    return Subset(data, order[:n]), Subset(data, order[n:])


def train(n: int, epochs: int, seed: int, settings: dict | None) -> dict[str, float]:
    """One training; with AdaReg, a closed-form update after every 25 epochs."""
    some, others = split(n, seed)
    torch.manual_seed(seed)
    model = Classifier()
    callbacks = []
    if settings is not None:
        callbacks = [AdaRegCallback(layers="head", every_n_epochs=min(25, epochs), **settings)]
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(some, batch_size=32, shuffle=True))
    (result,) = trainer.test(model, DataLoader(others, batch_size=len(others)), verbose=False)
    weight = model.head.weight.detach()
    result["stable rank"] = adareg.stable_rank(weight).item()
    result["spectral norm"] = adareg.spectral_norm(weight).item()
    return result


def summary(values: list[float], digits: int) -> str:
    """Mean ± standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def picture(results: dict[str, list[dict[str, float]]], columns: list[str], path: str) -> None:
    """A panel for each number that methods are judged by: means and standard errors."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True)
    for axes, column in zip(panels.flat, columns, strict=True):
        for name, rows in results.items():
            values = [row[column] for row in rows]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0
            colour = "tab:blue" if name == "none" else "tab:orange"
            axes.errorbar(statistics.mean(values), name, xerr=error, fmt="o", color=colour)
        axes.set_title(column)
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train every network, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=100, help="training images")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="lightning_digits.png")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are so small that a second thread only gets in the way
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # advice on workers and small data

    title = f"{arguments.size} digits, {arguments.seeds} seeds, mean ± standard error"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    columns = {"accuracy": 1, "nll": 3, "stable rank": 2, "spectral norm": 2}
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    runs = [(name, seed) for name in METHODS for seed in range(arguments.seeds)]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for name, seed in track(runs, "training"):
        results[name].append(train(arguments.size, arguments.epochs, seed, METHODS[name]))
    for name, rows in results.items():
        cells = [summary([row[column] for row in rows], d) for column, d in columns.items()]
        table.add_row(name, *cells)
    Console().print(table)
    picture(results, list(columns), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
