"""Recognizing hand-written digits: scikit-learn's own example, with the class name exchanged.

After https://scikit-learn.org/stable/auto_examples/classification/plot_digits_classification.html.
Run it with ``python examples/sklearn_digits.py``; it needs ``pip install '.[sklearn]' pandas``
and downloads nothing. It prints a table and draws which digits the last layer finds alike.

What to see: the class is exchanged by changing one name, and it does not predict better. On this
split, AdaReg with λ = 1/(2n) is less accurate than scikit-learn's own network. What it adds is the
heat map: pairs of digits that the last layer treats alike are red.
"""

import argparse
import warnings
from pathlib import Path

import matplotlib as mpl
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn import datasets, metrics
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from adareg.sklearn import AdaRegClassifier


def main() -> None:
    """Fit both classifiers, compare them, and save the heat map."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("sklearn_digits.png"))
    parser.add_argument("--max-iter", type=int, default=200)
    arguments = parser.parse_args()
    mpl.use("Agg")  # draw without a screen
    warnings.simplefilter("ignore", ConvergenceWarning)

    digits = datasets.load_digits()
    data = digits.images.reshape((len(digits.images), -1)) / 16
    X_train, X_test, y_train, y_test = train_test_split(
        data, digits.target, test_size=0.5, shuffle=False
    )

    table = Table(title="Digits: half for training", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "accuracy %", "log-loss", "macro F1"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    settings = {"random_state": 0, "max_iter": arguments.max_iter}
    for clf in (MLPClassifier(**settings), AdaRegClassifier(strength="auto", **settings)):
        clf.fit(X_train, y_train)
        predicted = clf.predict(X_test)
        table.add_row(
            type(clf).__name__,
            f"{100 * metrics.accuracy_score(y_test, predicted):.1f}",
            f"{metrics.log_loss(y_test, clf.predict_proba(X_test)):.3f}",
            f"{metrics.f1_score(y_test, predicted, average='macro'):.3f}",
        )
    Console().print(table)

    clf.plot_correlation().figure.savefig(arguments.out, dpi=120)
    pairs = clf.row_correlation_.rename_axis("a").rename_axis("b", axis=1).stack()
    pairs = pairs[[a < b for a, b in pairs.index]].sort_values()
    (a, b), (c, d) = pairs.index[-1], pairs.index[0]
    print(f"Most alike: {a} and {b} ({pairs.iloc[-1]:+.2f}); least: {c} and {d}.")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
