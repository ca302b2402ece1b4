"""Packages that an integration needs and the library itself does not."""

from __future__ import annotations

import re
from importlib import import_module, metadata, util
from typing import Any


def install(extra: str, upgrade: bool = False) -> str:
    """Return the command that brings an extra; it is the one place that says so.

    The package has not been published: it is installed from a checkout of its source.

    >>> install("lab")
    "in a checkout of AdaReg, run: pip install '.[lab]'"
    """
    return f"in a checkout of AdaReg, run: pip install {'--upgrade ' * upgrade}'.[{extra}]'"


def require(package: str, minimum: str, *, extra: str, distribution: str | None = None) -> None:
    """Say what to install, before the import of an optional package fails without a hint.

    Args:
        package: what is imported, for example ``"sklearn"``.
        minimum: the oldest version that is known to work.
        extra: the extra of this library that brings it.
        distribution: what is installed, if its name is another, for example ``"scikit-learn"``.

    Raises:
        ImportError: the package is missing or too old; the text has the command that helps.

    >>> require("torch", "2.6", extra="lightning")
    """
    name = distribution or package
    try:
        found = metadata.version(name) if util.find_spec(package) else None
    except metadata.PackageNotFoundError:
        found = None
    if found is None:
        raise ImportError(
            f"adareg.{extra} needs {name} {minimum} or newer, which is not installed; "
            f"{install(extra)}",
            name=package,
        )
    if _release(found) < _release(minimum):
        raise ImportError(
            f"adareg.{extra} needs {name} {minimum} or newer, and {found} is installed; "
            f"{install(extra, upgrade=True)}",
            name=package,
        )


def load(module: str, *, extra: str) -> Any:
    """Import a module that only some functions need, or say what to install.

    Args:
        module: for example ``"matplotlib.pyplot"``.
        extra: the extra of this library that brings its package.

    Raises:
        ImportError: the package is missing; the text has the command that helps.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"adareg.{extra} needs {package}, which is not installed; {install(extra)}",
            name=package,
        ) from error


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (2, 6, 0) of "2.6.0rc1"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
