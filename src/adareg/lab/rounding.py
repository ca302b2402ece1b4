"""Digits that mean something: what is shown does not depend on the last bits of a sum.

The last bits of a mean depend on the order of its sum, and so on the vector width of the CPU. Every
number that a page, a table or a file for readers shows is rounded here. It is rounded twice: at
first to so many digits that only the last bits go, so that sums of any order give one number, then
to those shown, so that 0.125 is always rounded the same way.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

#: Digits of a number in a file for readers, as many as records have.
DIGITS = 7
#: Sums of numbers of moderate size agree to this many digits, whatever their order.
SAFE = 12
#: Nothing that is measured is as small as this: it is what is left of a difference of equals.
NOTHING = 1e-12


def fixed(value: float, digits: int) -> float:
    """Round to ``digits`` after the point.

    >>> fixed(0.125000000000003, 2), fixed(0.124999999999997, 2), fixed(-1e-17, 2)
    (0.12, 0.12, 0.0)
    """
    value = float(f"{float(value):.{SAFE}g}")
    return round(round(value, digits + 6), digits) + 0.0  # + 0.0: zero has no sign


def significant(value: float, digits: int = DIGITS) -> float:
    """Round to ``digits`` from the first that is not zero; less than ``NOTHING`` is zero.

    >>> significant(0.0010000000000000009), significant(1e-17), significant(2 / 3)
    (0.001, 0.0, 0.6666667)
    """
    value = float(value)
    if not math.isfinite(value):
        return value
    return 0.0 if abs(value) < NOTHING else float(f"{float(f'{value:.{SAFE}g}'):.{digits}g}")


def written(value: float, digits: int, form: str = "") -> str:
    """Write a number with ``digits`` after the point and a proper minus.

    Args:
        value: the number.
        digits: as of ``fixed``.
        form: what a format has before the point: ``+`` for a sign, ``,`` between thousands.

    >>> written(-1234.5, 1, ","), written(-0.001, 2)
    ('−1,234.5', '0.00')
    """
    return f"{fixed(value, digits):{form}.{digits}f}".replace("-", "−")


def short(value: float, digits: int = 3) -> str:
    """Write a number with ``digits`` in all and a proper minus.

    >>> short(-0.00123456), short(1e-17)
    ('−0.00123', '0')
    """
    return f"{significant(value, digits):.{digits}g}".replace("-", "−")


def frame(table: pd.DataFrame) -> pd.DataFrame:
    """Round every number of a table to those digits that a file for readers has."""
    columns: dict[str, Any] = {
        str(name): table[name].map(significant) for name in table.select_dtypes("float")
    }
    return table.assign(**columns)
