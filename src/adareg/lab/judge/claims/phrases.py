"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from adareg.lab.judge.claims.base import Effect
from adareg.lab.rounding import written
from adareg.lab.train.methods import METHODS


def number(value: float, digits: int = 2) -> str:
    """Write a number with a proper minus.

    >>> number(-1.234, 1)
    '−1.2'
    """
    return written(value, digits)


def signed(value: float, digits: int = 2) -> str:
    """Write a number with its sign, unless it is zero.

    >>> signed(0.5), signed(-0.001)
    ('+0.50', '0.00')
    """
    text = number(value, digits)
    return text if text.startswith("−") or float(text) == 0 else f"+{text}"


def change(effect: Effect, digits: int = 2) -> str:
    """Write a difference with its unit and interval.

    >>> change(Effect(what="", value=-0.1, low=-0.2, high=0.1, seeds=5, unit="points"), 1)
    '−0.1 points [−0.2, +0.1]'
    """
    low, high = signed(effect.low, digits), signed(effect.high, digits)
    return f"{signed(effect.value, digits)} {effect.unit}".rstrip() + f" [{low}, {high}]"


def span(effects: Sequence[Effect], digits: int = 2) -> str:
    """Write the range of several differences."""
    low, high = (signed(pick(e.value for e in effects), digits) for pick in (min, max))
    return f"{low} to {high} {effects[0].unit}".rstrip()


def listing(parts: Sequence[str], last: str = "and") -> str:
    """Join parts as in a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    *first, end = parts
    return f"{', '.join(first)} {last} {end}" if first else end


def label(method: str) -> str:
    """Return a method's name, to stand in a sentence.

    >>> label("none"), label("adareg-fc")
    ('no regularizer', 'AdaReg (fully connected)')
    """
    if method == "none":
        return "no regularizer"
    name, _, where = (METHODS[method].label if method in METHODS else method).partition(", ")
    return f"{name} ({where})" if where else name


def several(count: int, noun: str) -> str:
    """Write a count with its noun.

    >>> several(1, "setting"), several(2, "setting")
    ('1 setting', '2 settings')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
