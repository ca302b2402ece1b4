"""For every claim a world in which it is true and one in which it is not."""

from adareg.lab.judge.claims import Records
from fakes.networks import LEVELS, networks


def ahead(name, by, relative=False):
    """AdaReg differs from all other methods, everywhere, or not at all."""

    def levels(method, config, true):
        changed = LEVELS[name] * by if relative else LEVELS[name] + by
        return {name: changed if true and method == "adareg" else LEVELS[name]}

    return levels


def loses(*methods, true=True):
    """Some methods lose accuracy with large batches in the true world, or in the other."""

    def levels(method, config, now):
        lost = now == true and method in methods and config.batch == 2048
        return {"accuracy": 89.0 if lost else 90.0}

    return levels


def spectra(method, config, true):
    shrunk = 0.8 if true and method == "adareg" else 1.0
    return {name: LEVELS[name] * shrunk for name in ("stable_rank", "spectral_norm")}


def growing_correlation(method, config, true):
    more = method == "adareg" and (not true or config.n > 600)
    return {"correlation": 0.15 if more else 0.1}


def heavy_decay(method, config, true):
    shrunk = 0.8 if true and method == "weight-decay" else 1.0
    return {"spectral_norm": LEVELS["spectral_norm"] * shrunk}


def digit_pairs(method, config, true):
    sign = 1 if true else -1
    return {"pair_17": 0.3 * sign, "pair_18": -0.3 * sign}


def with_batch_norm(method, config, true):
    gains = {"batch-norm": 1.0, "adareg+batch-norm": 2.0 if true else 1.0}
    return {"accuracy": 90.0 + gains.get(method, 0.0)}


def with_dropout(method, config, true):
    gains = {"dropout": 1.0, "adareg+dropout": 1.0 if true else 2.0}
    return {"accuracy": 90.0 + gains.get(method, 0.0)}


def small_sizes_lead(method, config, true):
    lead = (2.0 if config.n < 2500 else 0.5) if true else 1.0
    return {"accuracy": 90.0 + (lead if method == "adareg" else 0.0)}


def clearer_covariances(method, config, true):
    level = 0.2 if true and config.n > 600 else 0.1
    return {"row_strength": level, "col_strength": level}


def fainter_covariance(method, config, true):
    return {"correlation": 0.2 if true else 0.1, "row_strength": 0.1}


def variance_at_bound(method, config, true):
    return {"variance": 1e-3 if true else 5e-3}


def same_pattern(method, config, true):
    return {"likeness": 0.95 if true else 0.0}


WORLDS = {
    "mnist-improves": ("mnist-generalization", ahead("accuracy", 1.0)),
    "mnist-generalization": ("mnist-generalization", ahead("accuracy", 1.0)),
    "cifar-improves": ("cifar-generalization", ahead("accuracy", 1.0)),
    "cifar-generalization": ("cifar-generalization", ahead("accuracy", 1.0)),
    "mnist-batch-size": ("mnist-generalization", loses("adareg", true=False)),
    "mnist-batch-size-others": ("mnist-generalization", loses("none", "dropout", "decov")),
    "cifar-batch-size": ("cifar-generalization", loses("adareg", true=False)),
    "cifar-batch-size-others": ("cifar-generalization", loses("none", "dropout", "decov")),
    "cifar-batch-norm": ("cifar-generalization", loses("batch-norm")),
    "mnist-batch-norm": ("mnist-generalization", loses("batch-norm", true=False)),
    "sarcos-explained-variance": ("sarcos", ahead("explained", 0.03)),
    "optimum-train": ("mnist-optimization", ahead("train_loss", 0.8, relative=True)),
    "optimum-test": ("mnist-optimization", ahead("test_loss", 0.8, relative=True)),
    "optimum-peaks": ("mnist-optimization", ahead("peak", 1.5, relative=True)),
    **{
        f"{data}-{quantity}{end}": (experiment, spectra)
        for data, experiment in (
            ("mnist", "mnist-spectra"),
            ("cifar", "cifar-spectra"),
            ("sarcos", "sarcos"),
            ("digits", "digits"),
        )
        for quantity in ("stable-rank", "spectral-norm")
        for end in ("", "-decay")
    },
    "mnist-spectral-norm-of-decay": ("mnist-spectra", heavy_decay),
    "cifar-spectral-norm-of-decay": ("cifar-spectra", heavy_decay),
    "mnist-600": ("mnist-correlations", ahead("accuracy", 2.0)),
    "mnist-60000": ("mnist-correlations", ahead("accuracy", 0.2)),
    "correlation-stronger": ("mnist-correlations", ahead("correlation", 0.05)),
    "correlation-growing": ("mnist-correlations", growing_correlation),
    "correlation-1-7": ("mnist-correlations", digit_pairs),
    "correlation-1-8": ("mnist-correlations", digit_pairs),
    "with-batch-norm": ("mnist-combinations", with_batch_norm),
    "with-dropout": ("mnist-combinations", with_dropout),
    "last-layer-best": ("mnist-layers", ahead("accuracy", 1.0)),
    "last-layer-gains": ("mnist-layers", ahead("accuracy", 1.0)),
    "last-layer-small": ("mnist-layers", small_sizes_lead),
    "covariance-clearer": ("mnist-covariances", clearer_covariances),
    "covariance-bound": ("mnist-covariances", variance_at_bound),
    "covariance-pattern": ("mnist-covariances", same_pattern),
    "covariance-fainter": ("mnist-covariances", fainter_covariance),
    "digits-generalization": ("digits", ahead("accuracy", 2.0)),
    "digits-tasks": ("digits-completion", ahead("explained", 0.03)),
}


def world(key, true, **how):
    """The records of a world; ``how`` is passed on to ``networks``."""
    if key in BENCHMARKS:
        return Records([], [BENCHMARKS[key](true, **how)])
    experiment, levels = WORLDS[key]
    return Records(networks(experiment, lambda m, c: levels(m, c, true), **how))


def closed_form(true, seeds=6, noise=1.0):
    """Errors of updates; too few seeds, or too much noise: none was measured."""
    error = {"float32 precisions": 1e-7 if true else 1e-3} if seeds >= 3 and noise == 1 else None
    return {
        "machine": {"device": "abacus"},
        "updates": [{"p": 10, "d": d, "seconds": {}, "error": error} for d in (50, 500)],
    }


def cost(true, seeds=6, noise=1.0):
    """Timings of three sizes; too few seeds: only one of them."""
    exponent, spread = (1.5 if true else 2.5), 1 + 0.01 * noise**1.5
    rows = []
    for d in (50, 500, 5000)[: 3 if seeds >= 3 else 1]:
        median = (d / 50) ** exponent
        timing = {"median": median, "low": median / spread, "high": median * spread}
        rows.append({"p": 10, "d": d, "seconds": {"dense": timing, "joint": timing}})
    return {"machine": {"device": "abacus"}, "updates": rows}


BENCHMARKS = {"closed-form": closed_form, "cost": cost}
