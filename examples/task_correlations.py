"""Learn the torques of a robot arm from few poses, and look at how the tasks relate.

Run it with ``python examples/task_correlations.py``; about a minute, or a second with ``--steps 100
--seeds 1``. It needs matplotlib and rich; nothing is downloaded: a planar arm of five links hangs
in gravity. Each joint carries all links after it, so neighbouring torques are related, and the
network is not told; torques are measured with noise. Seed by seed, every method sees the same
poses, initial weights and batches; numbers are means over seeds ± standard errors. The picture has
the correlations of the true torques, and of the last layer's rows; "distance" is between the two.

What to see: with AdaReg the heat maps come closer to the first one, that of the torques. The
stronger the learned prior, the lower the stable rank, and the closer the last layer's correlations
come to those of the torques. It explains more variance than no regularizer, and less than plain
weight decay on all layers; both together are between the two.
"""

import argparse
import statistics

import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import adareg

JOINTS, BATCH, NOISE = 5, 25, 0.3
METHODS: dict[str, tuple[float, float | str | None]] = {  # weight decay on all weights, λ
    "none": (0.0, None),
    "weight decay 1e-3": (1e-3, None),
    "AdaReg 1e-4": (0.0, 1e-4),
    "AdaReg auto": (0.0, "auto"),
    "both": (1e-3, "auto"),
}


def poses(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Joint angles (n, 5), and the torques (n, 5) that hold unit links of unit mass still."""
    angles = torch.rand(n, JOINTS, generator=torch.Generator().manual_seed(seed)) * 3 - 1.5
    reach = angles.cumsum(1).cos()  # horizontal extent of each link
    starts = reach.cumsum(1) - reach
    lever = (starts + reach / 2)[:, None, :] - starts[:, :, None]  # of link k at joint i
    torques = (lever * torch.ones(JOINTS, JOINTS).triu()).sum(2)
    mean, deviation = torch.tensor([[5.6, 2.7, 1.1, 0.4, 0.1], [4.5, 4.0, 2.6, 1.3, 0.35]])
    return angles, (torques - mean) / deviation


def train(n: int, steps: int, seed: int, method: str) -> tuple[float, Tensor]:
    """Explained variance on other poses, and the last layer's weight (5 tasks x 50)."""
    decay, strength = METHODS[method]
    x, y = poses(n, seed)
    y = y + NOISE * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed + 1000))
    x_test, y_test = poses(2000, seed=10_000)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(JOINTS, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh())
    model.append(nn.Linear(50, JOINTS))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=decay)
    if strength is not None:
        auto = {"n_samples": n} if strength == "auto" else {}
        adareg.AdaReg(model, strength=strength, **auto).attach(optimizer, update_every=100)
    for _ in range(steps):
        batch = torch.randperm(n)[:BATCH]
        optimizer.zero_grad()
        mse_loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
    unexplained = mse_loss(model(x_test).detach(), y_test) / y_test.var(0).mean()
    return 1 - unexplained.item(), model[-1].weight.detach()


def summary(values: list[float], digits: int) -> str:
    """Mean ± standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def picture(pictures: dict[str, Tensor], path: str) -> None:
    """Heat maps side by side, from -1 (orange) to 1 (purple)."""
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    every = figure.subplots(2, 3)
    for axes, (title, matrix) in zip(every.flat, pictures.items(), strict=True):
        image = axes.imshow(matrix.numpy(), cmap="PuOr", vmin=-1, vmax=1)
        axes.set_title(title)
    figure.colorbar(image, ax=every)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train every network, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--poses", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", default="task_correlations.png")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are so small that a second thread only gets in the way

    title = f"Torques from {arguments.poses} poses, {arguments.seeds} seeds"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("method", "explained variance", "stable rank", "distance"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    pictures = {"the torques": (truth := torch.corrcoef(poses(2000, seed=10_000)[1].T))}
    for method in track(METHODS, "training"):
        runs = [train(arguments.poses, arguments.steps, s, method) for s in range(arguments.seeds)]
        learned = [adareg.correlation(weight) for _, weight in runs]
        table.add_row(
            method,
            summary([explained for explained, _ in runs], 3),
            summary([adareg.stable_rank(weight).item() for _, weight in runs], 2),
            summary([(matrix - truth).abs().mean().item() for matrix in learned], 2),
        )
        pictures[method] = torch.stack(learned).mean(0)
    Console().print(table)
    picture(pictures, arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
