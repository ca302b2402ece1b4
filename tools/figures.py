"""Draw the figures of the documentation: ``python tools/figures.py`` writes ``docs/figures/*.svg``.

Every curve is computed by the library itself. Colours are those of Okabe and Ito, and line style or
marker differ as well; panels have a light ground, so that they can be read on a dark page.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import adareg
from adareg.sklearn import EvidenceRegressor

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
BOUNDS = (1e-3, 1e3)
STYLE = {
    "axes.facecolor": "white",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "#fafafa",
    "font.size": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.facecolor": "#fafafa",
    "svg.hashsalt": "adareg",
}
Draw = Callable[[Figure], None]


def inv_threshold(figure: Figure) -> None:
    """What the closed form makes of an eigenvalue."""
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    r = torch.logspace(-6, 7, 200, dtype=torch.float64)
    for m, colour, dashes in ((10, BLUE, "-"), (500, ORANGE, "--")):
        answer = adareg.inv_threshold(torch.diag(r), m, BOUNDS).diagonal()
        left.loglog(r, answer, dashes, color=colour, label=f"m = {m}")
    for bound, name in zip(BOUNDS, ("u", "v"), strict=True):
        left.axhline(bound, color=GREY, linewidth=0.8, linestyle=":")
        left.annotate(name, (3e-7, bound), color=GREY, va="bottom")
    left.set(xlabel="eigenvalue r of Δ", ylabel="eigenvalue of Ω", ylim=(2e-4, 5e3))
    left.set_title("clip(m / r, u, v)")
    left.legend(loc="lower left")

    torch.manual_seed(0)
    W = (torch.randn(8, 5) @ torch.randn(5, 30)).double() / 10
    delta = W @ W.T
    before = torch.linalg.eigvalsh(delta).flip(0).clamp(min=0)
    after = torch.linalg.eigvalsh(adareg.inv_threshold(delta, 30, BOUNDS))
    index = np.arange(1, 9)
    right.semilogy(index[:5], before[:5], "o", color=BLUE, label="Δ = W Wᵀ, rank 5")
    right.semilogy(index, after, "s", color=ORANGE, markersize=5, label="Ω, m = 30")
    right.axhline(BOUNDS[1], color=GREY, linewidth=0.8, linestyle=":")
    right.set(xlabel="direction", xticks=index, ylim=(0.1, 5e4))
    right.set_title("null directions get v")
    right.legend(loc="upper left")


def heat(axes: Axes, matrix: Tensor, title: str, ticks: list[str] | None = None) -> None:
    """A correlation matrix, from -1 (orange) to 1 (purple)."""
    axes.imshow(matrix.numpy(), cmap="PuOr", vmin=-1, vmax=1)
    axes.set_title(title)
    labels = [] if ticks is None else ticks
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)


def kronecker(figure: Figure) -> None:
    """Two small covariances say what one large one would."""
    row = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 1.0]])
    distance = (torch.arange(6)[:, None] - torch.arange(6)[None]).abs()
    col = 0.6**distance * (-1.0) ** distance
    axes = figure.subplots(1, 3, width_ratios=(1, 1.3, 2.2))
    heat(axes[0], row, "rows: Σr = Ωr⁻¹\n(3 outputs)")
    heat(axes[1], col, "columns: Σc = Ωc⁻¹\n(6 inputs)")
    heat(axes[2], torch.kron(row, col), "all 18 weights:\ncov(Wij, Wkl) = Σr[i,k] · Σc[j,l]")


def drift(figure: Figure) -> None:
    """Sweeps of Alg. 1 on one weight, and where the joint rule is at once."""
    torch.manual_seed(0)
    W = torch.randn(10, 50).double() / 4
    joint, prior = adareg.solve(W, "joint", BOUNDS), None
    sweeps = 8
    scales, excess = [], []
    for _ in range(sweeps):
        prior = adareg.solve(W, "alternating", BOUNDS, prior)
        scales.append([_scale(prior.row, 10), _scale(prior.col, 10)])
        excess.append((prior.objective(W) - joint.objective(W)).item())
    x, (rows, cols) = np.arange(1, sweeps + 1), np.array(scales).T
    left, right = figure.subplots(1, 2)
    left.semilogy(x, rows, "o-", color=BLUE, markersize=4, label="rows, Ωr")
    left.semilogy(x, cols, "s-", color=ORANGE, markersize=4, label="columns, Ωc")
    left.semilogy(x, rows * cols, "^-", color=GREEN, markersize=4, label="their product")
    for side, colour in ((joint.row, BLUE), (joint.col, ORANGE)):
        left.axhline(_scale(side, 10), color=colour, linestyle=":", linewidth=1.2)
    left.set(xlabel="sweep", ylabel="geometric mean of eigenvalues", ylim=(5e-4, 5e4))
    left.set_title("alternating drifts to joint (dotted)")
    left.legend(loc="upper right", ncols=3, columnspacing=1, handlelength=1.5, fontsize=8)
    right.plot(x, excess, "o-", color=BLUE, markersize=4)
    right.set(xlabel="sweep", ylabel="objective above its minimum")
    right.set_title("what the drift still gains")


def _scale(precision: adareg.Precision, k: int) -> float:
    """The geometric mean of the k smallest eigenvalues: those inside the weight's span."""
    return precision.eigenvalues()[:k].log().mean().exp().item()


def shrinkage(figure: Figure) -> None:
    """One proximal step, as each singular value sees it, for weight decay and a learned prior."""
    p, d, step = 10, 50, 2e-3
    s = torch.logspace(-2, 1, 200, dtype=torch.float64)
    plain, learned = [], []
    for value in s:
        W = torch.zeros(p, d, dtype=torch.float64)
        W[0, 0] = value
        decay = adareg.MatrixNormal.identity(W).proximal(W, step * 10)
        plain.append(decay[0, 0].item())
        learned.append(adareg.solve(W, "joint", BOUNDS).proximal(W, step)[0, 0].item())
    left, right = figure.subplots(1, 2)
    left.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    left.semilogx(s, np.array(plain) / s.numpy(), "--", color=ORANGE, label="weight decay")
    left.semilogx(s, np.array(learned) / s.numpy(), "-", color=BLUE, label="learned prior")
    left.set(xlabel="singular value s", ylabel="s after / s before", ylim=(0, 1.08))
    left.set_title("one proximal step")
    left.legend(loc="lower right")
    _repeated_steps(right, step)


def _repeated_steps(axes: Axes, step: float) -> None:
    """A whole spectrum after many steps, the loss left out; the prior is updated after each ten."""
    start = torch.linspace(2.0, 0.2, 10, dtype=torch.float64)
    W = torch.zeros(10, 50, dtype=torch.float64)
    W[range(10), range(10)] = start
    X = W.clone()
    for _ in range(4):
        prior = adareg.solve(X, "joint", BOUNDS)
        for _ in range(10):
            X = prior.proximal(X, step)
    Y = W.clone()
    decay = _same_size(W, X)
    for _ in range(40):
        Y = adareg.MatrixNormal.identity(Y).proximal(Y, decay)
    index = np.arange(1, 11)
    axes.plot(index, start, "o", color=GREY, markersize=4, label="before")
    axes.plot(index, torch.linalg.svdvals(Y), "s", color=ORANGE, markersize=4, label="weight decay")
    axes.plot(index, torch.linalg.svdvals(X), "^", color=BLUE, markersize=5, label="learned prior")
    axes.set(xlabel="singular value", xticks=index, ylim=(0, 2.2))
    axes.set_title("forty steps to the same ‖W‖, without a loss")
    axes.legend(loc="upper right")


def _same_size(W: Tensor, target: Tensor) -> float:
    """The step of weight decay that makes W as large as the target in forty steps."""
    ratio = (W.norm() / target.norm()).item()
    return (ratio ** (1 / 40) - 1) / 2


def correlations(figure: Figure) -> None:
    """The same trained layer seen through its weight and through its prior's row covariance."""
    weight, once, later = _train()
    axes = figure.subplots(1, 3)
    digits = list("0123456789")
    heat(axes[0], adareg.correlation(weight), "correlation(weight)", digits)
    for i, (prior, title) in enumerate([(once, "after 1 update"), (later, "after 4 updates")], 1):
        learned = adareg.covariance_correlation(prior.row.covariance())
        heat(axes[i], learned, f"prior's rows, {title}", digits)


def _train() -> tuple[Tensor, adareg.MatrixNormal, adareg.MatrixNormal]:
    """The head of a classifier of 400 digits, and its prior after one and after four updates."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images[:400] / 16, dtype=torch.float32), torch.tensor(labels[:400])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU())
    model.append(nn.Linear(50, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    reg = adareg.AdaReg(model, bounds=BOUNDS)
    reg.attach(optimizer, update_every=300)
    once = None
    for step in range(1200):
        optimizer.zero_grad()
        batch = torch.randperm(400)[:32]
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        once = reg.priors["4"] if step == 299 else once
    assert once is not None
    return model[4].weight.detach(), once, reg.priors["4"]


def small_tables(figure: Figure) -> None:
    """Patients that were kept aside, predicted with error bars, and what each column is worth."""
    table = load_diabetes(as_frame=True, scaled=False).frame
    X, y = table.drop(columns="target"), table["target"]
    X, X_test, y, y_test = train_test_split(X, y, test_size=100, random_state=0)
    model = EvidenceRegressor(random_state=0).fit(X, y)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for axes in (left, right):
        axes.set_prop_cycle(color=[BLUE])
    model.plot_predictions(X_test, y_test, left)
    left.set_title("diabetes, 100 patients kept aside")
    model.plot_relevance(right)


FIGURES: dict[str, tuple[Draw, tuple[float, float]]] = {
    "inv-threshold": (inv_threshold, (7.2, 2.9)),
    "kronecker": (kronecker, (7.2, 3.0)),
    "drift": (drift, (7.2, 2.9)),
    "shrinkage": (shrinkage, (7.2, 2.9)),
    "correlations": (correlations, (7.2, 2.7)),
    "small-tables": (small_tables, (7.2, 3.4)),
}


def write(folder: Path) -> list[Path]:
    """Draw every figure into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (draw, size) in FIGURES.items():
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=size)
            draw(figure)
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def main() -> None:
    """Draw the figures where the pages look for them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/figures")
    for path in write(parser.parse_args().out):
        print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")  # noqa: T201


if __name__ == "__main__":
    main()
