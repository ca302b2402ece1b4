"""The documentation as a reader has it: built, and opened from disk without a network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adareg.lab.judge.claims import CLAIMS

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    return folder


def test_nothing_is_fetched_from_the_network(site):
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 30
    for page in pages:
        fetched = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*="(http[^"]*)', page.read_text()
        )
        assert not fetched, page


def test_every_claim_is_two_clicks_away(site):
    assert 'href="results/index.html"' in (site / "index.html").read_text()
    page = (site / "results/index.html").read_text()
    for key in CLAIMS:
        assert f'href="#{key}"' in page
        assert f'id="{key}"' in page


@pytest.mark.skipif(BROWSER is None, reason="no browser; on Debian: apt-get install chromium")
def test_search_works_on_a_site_opened_from_disk(site, tmp_path):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"]
    page = (site / "howto/choose.html").as_uri() + "?q=proximal"
    done = subprocess.run([*command, page], capture_output=True, text=True, timeout=300)
    found = re.findall(r'<a href="([^"]*)" class="md-search-result__link"', done.stdout)
    assert any(link.endswith("choose.html#coupled-or-proximal") for link in found), found
