"""Seconds of ``EvidenceRegressor`` beside scikit-learn's Gaussian process, by the number of rows.

    python benchmarks/small_tables.py results/bench/small-tables.json [ROWS ...]

Tables are ``make_friedman1`` with ten columns, with noise of 1 and of 0.01. Both estimators are
timed in one run, one after the other, in processor seconds of one thread: a fit, and a prediction
of 1,000 rows with and without error bars (the least of five, the first left out). The Gaussian
process is that of scikit-learn's examples, ``ConstantKernel() * RBF() + WhiteKernel()``, with
standardised inputs, up to 2,000 rows. R² is that of 1,000 further rows.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from adareg.bench.report import machine
from adareg.sklearn import EvidenceRegressor

#: Rows of the Gaussian process, at most: its time grows with their cube.
MOST = 2000

TEST = 1000


def gaussian_process() -> Any:
    """Return a Gaussian process as its users have it."""
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measured(model: Any, n: int, noise: float) -> dict[str, float]:
    """Return the times of one estimator, and how good it is."""
    X, y = make_friedman1(n + TEST, n_features=10, noise=noise, random_state=0)
    fit = seconds(lambda: model.fit(X[:n], y[:n]))
    mean = [seconds(lambda: model.predict(X[n:])) for _ in range(6)][1:]
    bars = [seconds(lambda: model.predict(X[n:], return_std=True)) for _ in range(6)][1:]
    score = model.score(X[n:], y[n:])
    return {"fit": fit, "predict": min(mean), "error bars": min(bars), "score": score}


def row(n: int, noise: float) -> dict[str, Any]:
    """Return what both took."""
    found = {
        "rows": n,
        "noise": noise,
        "evidence": measured(EvidenceRegressor(random_state=0), n, noise),
    }
    if n <= MOST:
        found["gaussian process"] = measured(gaussian_process(), n, noise)
    print(json.dumps(found), flush=True)
    return found


def main(out: Path, sizes: list[int]) -> None:
    """Measure, and write the record."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        measured(EvidenceRegressor(3, n_networks=1, max_iter=3), 50, 1.0)  # to warm up
        rows = [row(n, 1.0) for n in sizes] + [row(n, 0.01) for n in sizes if n <= MOST / 2]
    record = {"machine": machine(torch.device("cpu")), "rows": rows}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), [int(x) for x in sys.argv[2:]] or [100, 1000, 2000, 10_000, 100_000])
