"""MkDocs hooks: pages may link to files of the repository as they do on a code host.

``[record](../results/bench/cpu.json)`` in ``docs/cost.md`` leads to the file beside ``docs``. The
site gets a copy of every file that a page links to, and the link leads there.
"""

import os.path
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\[([^\]]*)\]\(([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside ``docs``."""
    root = Path(config.config_file_path).parent
    for page in list(files.documentation_pages()):
        for name in _outside(page.src_uri, page.content_string):
            if (root / name).is_file() and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links out of ``docs`` into links to the copies, and links of copies likewise."""
    source = page.file.src_uri
    copied = page.file.generated_by is not None
    here = source if copied else f"docs/{source}"

    def redirect(match: re.Match[str]) -> str:
        target = _resolve(here, match[2]).removeprefix("docs/")
        if files.get_file_from_path(target) is None:
            return match[1] if copied else match[0]  # a copy's own links may lead nowhere here
        link = os.path.relpath(target, os.path.dirname(source) or ".")
        return f"[{match[1]}]({link}{match[3] or ''})"

    return _LINK.sub(redirect, markdown)


def _outside(source: str, markdown: str) -> Iterator[str]:
    """The files outside ``docs`` that a page of it links to, from the root of the repository."""
    targets = (_resolve(f"docs/{source}", match[2]) for match in _LINK.finditer(markdown))
    return (target for target in targets if not target.startswith(("docs/", "..")))


def _resolve(page: str, link: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(page), link))
