"""A griffe extension: docstrings are written for ``help()``, and read as Markdown here.

Roles such as ``:func:`adareg.solve``` become links where the reference has the name, and code
elsewhere; doctests become code blocks.
"""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")
_DOCTEST = re.compile(r"^([ ]*)>>> .*(?:\n[ ]*\S.*)*", re.MULTILINE)

#: What the pages in docs/reference show, so that a link to it can be made.
LINKED = re.compile(
    r"adareg\.(?:AdaReg|solve|inv_threshold|correlation|covariance_correlation)\b.*"
)


def as_markdown(text: str) -> str:
    """Roles as links or code, doctests as fenced blocks."""
    text = _ROLE.sub(_reference, text)
    return _DOCTEST.sub(_fenced, text)


def _reference(match: re.Match[str]) -> str:
    name = match[1]
    return f"[`{name}`][{name}]" if LINKED.fullmatch(name) else f"`{name}`"


def _fenced(match: re.Match[str]) -> str:
    indent = match[1]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"


class Docstrings(griffe.Extension):
    """Rewrites every docstring when it is found."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
