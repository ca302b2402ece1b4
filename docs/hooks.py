"""MkDocs hooks: pages may link to files of the repository as they do on a code host.

``[record](../results/bench/cpu.json)`` in ``docs/cost.md`` leads to the file beside ``docs``. The
site gets a copy of each such file, and the link leads there.
"""

import os.path
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: What pages may link to outside docs.
PUBLISHED = ("results/bench/*", "benchmarks/NOTES.md", "examples/*.py", "CONTRIBUTING.md")
_LINK = re.compile(r"(\]\()(\.\./[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the published files of the repository to the site."""
    root = Path(config.config_file_path).parent
    for pattern in PUBLISHED:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links out of ``docs`` into links to those copies."""
    folder = PurePosixPath(page.file.src_uri).parent
    outside = page.file.generated_by is not None  # a copy: its links are right as they are

    def redirect(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath("docs") / folder / match[2])
        if outside or target.startswith("docs/") or files.get_file_from_path(target) is None:
            return match[0]
        return match[1] + os.path.relpath(target, folder)

    return _LINK.sub(redirect, markdown)
