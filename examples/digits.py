"""Train a small network on few handwritten digits, without and with AdaReg, and compare.

Run it with ``python examples/digits.py``; about a minute. It needs scikit-learn (for its bundled
8 x 8 images), matplotlib and rich; nothing is downloaded. Every method sees the same initial
weights, the same training images and the same batches, seed by seed; each number is a mean over
seeds ± its standard error.

What to see: the three curves of accuracy nearly coincide, and those of the stable rank do not.
AdaReg changes the last layer and leaves the predictions nearly as they are.
"""

import argparse
import statistics
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import adareg

BLOCKS, EPOCHS_PER_BLOCK, BATCH = 4, 25, 32

METHODS: dict[str, dict[str, float | str] | None] = {
    "none": None,
    "AdaReg 1e-4": {"strength": 1e-4},  # the paper's λ
    "AdaReg auto": {"strength": "auto"},  # λ = 1/(2·images)
}


@dataclass(frozen=True)
class Result:
    """What one trained network is judged by; the last two are of its last layer."""

    accuracy: float
    nll: float
    stable_rank: float
    spectral_norm: float


def load(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Some training images and all the others for testing, drawn by seed."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order[:n]], y[order[:n]], x[order[n:]], y[order[n:]]


def train(n: int, seed: int, settings: dict[str, float | str] | None) -> Result:
    """Blocks of ordinary training; with AdaReg, a closed-form update after each."""
    x, y, x_test, y_test = load(n, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    if settings is not None:
        auto = {"n_samples": n} if settings["strength"] == "auto" else {}
        reg = adareg.AdaReg(model, layers="last", **settings, **auto)
        reg.attach(optimizer)
    for _ in range(BLOCKS):
        for _ in range(EPOCHS_PER_BLOCK):
            for batch in torch.randperm(n).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        if settings is not None:
            reg.update()
    with torch.no_grad():
        logits, last = model(x_test), model[-1].weight
        return Result(
            accuracy=100 * (logits.argmax(1) == y_test).double().mean().item(),
            nll=cross_entropy(logits, y_test).item(),
            stable_rank=adareg.stable_rank(last).item(),
            spectral_norm=adareg.spectral_norm(last).item(),
        )


def summary(values: list[float], digits: int) -> str:
    """Mean ± standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def picture(results: dict[tuple[int, str], list[Result]], path: str) -> None:
    """Accuracy and stable rank against the number of images, with standard errors."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    panels = {"accuracy": "accuracy, %", "stable_rank": "stable rank of the last layer"}
    for axes, (field, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for method in METHODS:
            sizes = [n for n, name in results if name == method]
            columns = [[getattr(r, field) for r in results[n, method]] for n in sizes]
            errors = [statistics.stdev(c) / len(c) ** 0.5 if len(c) > 1 else 0 for c in columns]
            means = [statistics.mean(column) for column in columns]
            axes.errorbar(sizes, means, errors, label=method, marker="o", capsize=3)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.set(xlabel="training images", title=title)
    figure.axes[0].legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train every network, with a progress bar, print the table and draw the picture."""
    torch.set_num_threads(1)  # the networks are so small that a second thread only gets in the way
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="digits.png")
    arguments = parser.parse_args()

    console = Console()
    title = f"Digits: {arguments.seeds} seeds, mean ± standard error"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("n", "method", "accuracy %", "NLL", "stable rank", "spectral norm"):
        justify = "left" if column == "method" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    bar = Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    every: dict[tuple[int, str], list[Result]] = {}
    with bar:
        task = bar.add_task("", total=len(arguments.sizes) * len(METHODS) * arguments.seeds)
        for n in arguments.sizes:
            for name, settings in METHODS.items():
                bar.update(task, description=f"{n} images, {name}")
                results = every[n, name] = []
                for seed in range(arguments.seeds):
                    results.append(train(n, seed, settings))
                    bar.advance(task)
                table.add_row(
                    str(n),
                    name,
                    summary([r.accuracy for r in results], 1),
                    summary([r.nll for r in results], 3),
                    summary([r.stable_rank for r in results], 2),
                    summary([r.spectral_norm for r in results], 2),
                    end_section=name == list(METHODS)[-1],
                )
        bar.update(task, description="done")
    console.print(table)
    picture(every, arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
