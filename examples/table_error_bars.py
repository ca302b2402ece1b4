"""Predict from two small tables with error bars, beside what people use for that.

Run it with ``python examples/table_error_bars.py``; under a minute. It needs ``pip install
'.[sklearn]'``, matplotlib and rich; nothing is downloaded. Friedman's function is made up: 100
rows, ten columns, of which five count. Diabetes has 442 patients. Every method sees the same folds;
numbers are means over five folds ± their standard errors. "in 95 %" says how many of the rows that
were kept aside lie in their intervals of 95 %.

What to see: on Friedman's function, which bends, EvidenceRegressor is ahead, and its error bars are
a little too wide. On diabetes all three are alike: a straight line is enough there. The picture has
the error bars of one fold of the first table, and finds the five columns that count.
"""

import argparse
import statistics
import warnings

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import norm
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from adareg.sklearn import EvidenceRegressor

TABLES = {
    "Friedman": make_friedman1(n_samples=100, noise=1.0, random_state=0),
    "diabetes": load_diabetes(return_X_y=True),
}
KERNEL = ConstantKernel() * RBF() + WhiteKernel()
METHODS = {
    "EvidenceRegressor": lambda: EvidenceRegressor(random_state=0),
    "Gaussian process": lambda: make_pipeline(
        StandardScaler(), GaussianProcessRegressor(KERNEL, normalize_y=True, random_state=0)
    ),
    "Bayesian ridge": lambda: make_pipeline(StandardScaler(), BayesianRidge()),
}


def judge(model, X: np.ndarray, y: np.ndarray) -> list[float]:
    """R², mean log likelihood, and the percentage of rows in their 95 % intervals."""
    mean, std = model.predict(X, return_std=True)
    inside = 100 * np.mean(abs(y - mean) < 1.96 * std)
    return [model.score(X, y), norm.logpdf(y, mean, std).mean(), inside]


def summary(values: list[float], digits: int) -> str:
    """Mean ± standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    """Fit every method on every fold, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--out", default="table_error_bars.png")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # of the Gaussian process

    title = f"{arguments.folds} folds, mean ± standard error"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("table", "method", "R²", "log likelihood", "% in 95 %"):
        justify = "left" if column in ("table", "method") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    splits = KFold(arguments.folds, shuffle=True, random_state=0)
    for name in arguments.tables:
        X, y = TABLES[name]
        for method, make in METHODS.items():
            rows = [judge(make().fit(X[a], y[a]), X[b], y[b]) for a, b in splits.split(X)]
            columns = zip(zip(*rows, strict=True), (2, 2, 0), strict=True)
            table.add_row(name, method, *(summary(list(c), digits) for c, digits in columns))
    Console().print(table)

    X, y = TABLES[arguments.tables[0]]
    train, test = next(splits.split(X))
    model = EvidenceRegressor(random_state=0).fit(X[train], y[train])
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    model.plot_predictions(X[test], y[test], ax=left)
    model.plot_relevance(ax=right)
    figure.savefig(arguments.out, dpi=120)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
