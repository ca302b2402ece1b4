"""What must be installed, said before it is missed."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_INSTALL = "pip install 'adareg[sklearn]'"
_OLDEST = (1, 6)


def require(package: str, purpose: str) -> Any:
    """Import ``package``, or say what it is needed for and how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        raise ImportError(f"{purpose} needs {name}: {_INSTALL}", name=name) from error


def require_scikit_learn() -> None:
    """Refuse a missing scikit-learn, and one that is too old for what is used here."""
    version = require("sklearn", "adareg.sklearn").__version__
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        raise ImportError(
            f"adareg.sklearn needs scikit-learn {wanted} or newer, found {version}: {_INSTALL}"
        )
