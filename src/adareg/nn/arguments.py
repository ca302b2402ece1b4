"""The arguments of a regularizer: what is accepted, and what they stand for."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from adareg.core.evidence.constants import DEFAULTS
from adareg.core.evidence.likelihood import Likelihood
from adareg.core.rules import check_rule
from adareg.core.spectrum import BOUNDS
from adareg.nn.evidence import Evidence
from adareg.nn.sources import Given

#: λ unless given: the paper's.
STRENGTH = 1e-4


def is_positive_integer(value: object) -> bool:
    """Whether it is one, of any integer type; True is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def check_any_rule(rule: str) -> str:
    """The rule, if there is one of that name: of those of weights alone, or the evidence rule."""
    if rule == "evidence":
        return rule
    try:
        return check_rule(rule)
    except ValueError as error:
        raise ValueError(f"{error}, 'evidence'") from None


def make_evidence(
    rule: str, n_samples: int | None, likelihood: str | Likelihood | None, loss_scale: float | None
) -> Evidence | None:
    """What the evidence rule keeps; None for other rules, which have no use for its arguments."""
    if rule == "evidence":
        if not is_positive_integer(n_samples):
            raise ValueError(
                f"rule='evidence' needs the size of the training set; got "
                f"n_samples={n_samples!r}, expected a positive integer"
            )
        return Evidence(
            int(n_samples),  # type: ignore[arg-type]
            likelihood or "classification",
            1.0 if loss_scale is None else loss_scale,
        )
    for name, value in (("likelihood", likelihood), ("loss_scale", loss_scale)):
        if value is not None:
            raise ValueError(f"{name}={value!r} is used with rule='evidence' alone")
    return None


def check_used(rule: str, strength: float | str, bounds: tuple[float, float]) -> None:
    """Refuse a strength or bounds for the evidence rule, which would not look at them."""
    if rule != "evidence":
        return
    if strength != STRENGTH:
        raise ValueError(
            f"strength={strength!r}: rule='evidence' learns the strength; leave strength out"
        )
    if tuple(bounds) != BOUNDS:
        raise ValueError(f"bounds={bounds!r}: rule='evidence' has no bounds; leave bounds out")


def check_data(rule: str, data: Any) -> None:
    """Refuse training data that no update would look at, or that could not be read."""
    if rule == "evidence":
        Given(data, DEFAULTS.samples)
    elif data is not None:
        raise ValueError(f"data is used with rule='evidence' alone, not {rule!r}")


def resolve_strength(strength: float | str, n_samples: int | None) -> float:
    """λ as a number."""
    if strength == "auto":
        if not is_positive_integer(n_samples):
            raise ValueError(
                f"strength='auto' is 1/(2·n_samples) and needs the size of the training set; "
                f"got n_samples={n_samples!r}, expected a positive integer"
            )
        return 1 / (2 * int(n_samples))  # type: ignore[arg-type]
    if n_samples is not None:
        raise ValueError(f"n_samples={n_samples!r} is used with strength='auto' alone")
    if not isinstance(strength, Real) or not 0 < strength < math.inf:
        raise ValueError(
            f"strength={strength!r}: expected a positive number, or 'auto' with n_samples"
        )
    return float(strength)
