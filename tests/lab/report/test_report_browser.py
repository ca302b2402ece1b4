"""The page in a real browser: it checks itself when asked (``?selftest``, see ``page.js``)."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from adareg.lab.report import build
from fakes.records import fill

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(BROWSER is None, reason="no browser; on Debian: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    fill(root, "mnist-generalization", "mnist-optimization", "mnist-covariances", "sarcos")
    fill(root, "digits", "smalldata-wine", "smalldata-diabetes")
    return build(root)


#: A window cannot be as narrow as a phone, a frame can: the page is opened in one of some width.
FRAME = """<!DOCTYPE html><iframe src="page.html?selftest" style="width: {width}px; height: 900px"
frameborder="0" onload="Object.assign(document.documentElement.dataset,
this.contentDocument.documentElement.dataset, {{width: this.contentWindow.innerWidth}})"></iframe>
"""


def checked(text, folder, width):
    """What the page says of itself, and what the browser's console says."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=width), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += ["--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    command += ["--allow-file-access-from-files", "--window-size=1300,900", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120)
    root = re.search("<html[^>]*>", done.stdout)
    said = dict(re.findall(r'data-(\w+)="([^"]*)"', root[0])) if root else {}
    assert said.keys() == {"selftest", "checked", "width"}, done.stderr[-2000:]
    assert int(said["width"]) == width
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return said["selftest"], [int(count) for count in said["checked"].split()], console


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_opens_and_checks_itself(text, tmp_path, width):
    result, (figures, tables, links), console = checked(text, tmp_path, width)
    assert result == "passed"
    assert console == []
    assert figures == text.count('class="drawing"') > 15
    assert tables == text.count('class="sortable') > 8
    assert links > 30


@pytest.mark.parametrize("width", [1200, 390])
def test_the_committed_page_opens_and_checks_itself(tmp_path, width):
    page = Path(__file__).parents[3] / "results/report.html"
    result, (figures, *_), console = checked(page.read_text(encoding="utf-8"), tmp_path, width)
    assert (result, console) == ("passed", [])
    assert figures > 40


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('href="#cost"', 'href="#lost"', "#lost leads nowhere"),
        ("body.append(", "[].concat(", "is not sorted"),
        (".drawing svg { display: block;", ".drawing svg { display: none;", "a figure of 0"),
        ("</body>", "<script>missing();</script></body>", "missing is not defined"),
        ("<main>", '<main><p style="width: 3000px">wide</p>', "the page is"),
        ("data:image/svg+xml;base64,", "data:image/svg+xml;base64,AAAA", "is no SVG"),
    ],
)
def test_it_notices_what_is_broken(text, tmp_path, old, new, complaint):
    assert old in text
    result, _, _ = checked(text.replace(old, new), tmp_path, 1200)
    assert complaint in result
