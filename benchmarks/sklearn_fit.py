"""How long ``fit`` takes beside scikit-learn's own MLP, on scikit-learn's digits.

Run it with ``python benchmarks/sklearn_fit.py``. All parameters are at their defaults. The
estimators take turns, seed by seed, so that whatever else the machine does hits them alike; each
number is a median. ``strength=None`` does the same work as the MLP, to the same weights. With the
prior the loss goes on improving for more epochs, so there is a ratio for an epoch as well.
"""

import argparse
import os
import statistics
import time
import warnings

import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from adareg.sklearn import AdaRegClassifier

ESTIMATORS = {
    "MLPClassifier": MLPClassifier,
    "AdaRegClassifier": AdaRegClassifier,
    "AdaRegClassifier, strength=None": lambda **kw: AdaRegClassifier(strength=None, **kw),
}


def measure(repeats: int) -> dict[str, list[tuple[float, int]]]:
    """Seconds and epochs of every fit."""
    X, y = load_digits(return_X_y=True)
    results: dict[str, list[tuple[float, int]]] = {name: [] for name in ESTIMATORS}
    for seed in range(-1, repeats):  # the first is to warm up
        for name, make in ESTIMATORS.items():
            estimator = make(random_state=max(seed, 0))
            start = time.perf_counter()
            estimator.fit(X, y)
            if seed >= 0:
                results[name].append((time.perf_counter() - start, estimator.n_iter_))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = measure(repeats)
    base = results["MLPClassifier"]
    print(f"{repeats} seeds, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    print(f"{'':32}{'fit':>9}{'epochs':>8}{'epoch':>10}{'fit ÷':>9}{'epoch ÷':>9}")
    for name, runs in results.items():
        fit = statistics.median(s for s, _ in runs)
        epoch = statistics.median(s / n for s, n in runs)
        epochs = statistics.median(n for _, n in runs)
        pairs = list(zip(runs, base, strict=True))
        ratio = statistics.median(a / b for (a, _), (b, _) in pairs)
        per_epoch = statistics.median(a / n / (b / k) for (a, n), (b, k) in pairs)
        print(
            f"{name:32}{fit:7.3f} s{epochs:8.0f}{1e3 * epoch:7.2f} ms{ratio:9.2f}{per_epoch:9.2f}"
        )


if __name__ == "__main__":
    main()
