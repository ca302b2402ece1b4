"""The paper's own numbers: its Tables 1 and 2, and the accuracies of its Fig. 5."""

from __future__ import annotations

#: Table 1 (tab:sarcos): explained variance of the seven tasks. It has no row for weight decay.
EXPLAINED_VARIANCE: dict[str, tuple[float, ...]] = {
    "none": (0.4418, 0.3472, 0.5222, 0.5036, 0.6024, 0.4727, 0.5298),
    "dropout": (0.4413, 0.3271, 0.5202, 0.5063, 0.6036, 0.4711, 0.5345),
    "batch-norm": (0.4768, 0.3770, 0.5396, 0.5216, 0.6117, 0.4936, 0.5479),
    "decov": (0.4027, 0.3137, 0.4703, 0.4515, 0.5229, 0.4224, 0.4716),
    "adareg": (0.4769, 0.3969, 0.5485, 0.5308, 0.6202, 0.5085, 0.5561),
}

#: Table 2 (tab:srank): stable rank and spectral norm of the last layer on SARCOS.
SPECTRA: dict[str, tuple[float, float]] = {
    "none": (4.48, 0.96),
    "weight-decay": (4.83, 0.92),
    "adareg": (2.88, 0.70),
}

#: Fig. 5 (fig:correlation): test accuracy in percent, by training size and method.
ACCURACY: dict[tuple[int, str], float] = {
    (600, "none"): 89.34,
    (600, "adareg"): 92.50,
    (60_000, "none"): 98.99,
    (60_000, "adareg"): 99.19,
}
