import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_directory_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("ADAREG_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def real():
    """The directory of the real files, for the tests that want them."""
    named = os.environ.get("ADAREG_DATA")
    if not named:
        pytest.skip("ADAREG_DATA names no directory of real data")
    return Path(named)
