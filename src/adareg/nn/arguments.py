"""Checks of arguments that several regularizers and callbacks take."""

from __future__ import annotations

from numbers import Integral


def is_positive_integer(value: object) -> bool:
    """Return if it is one, of any integer type; True is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def check_n_samples(n_samples: object) -> int:
    """Return the size of the training set.

    Raises:
        ValueError: it is no positive integer.
    """
    if not is_positive_integer(n_samples):
        raise ValueError(
            f"n_samples={n_samples!r}: expected the size of the training set, a positive integer"
        )
    return int(n_samples)  # type: ignore[call-overload]
