"""Many fits in one process leave nothing behind."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "endurance.py"


@pytest.mark.exhaustive
def test_two_hundred_fits_leave_nothing_behind(one_thread):
    endurance = runpy.run_path(str(SCRIPT))
    grown = endurance["growth"](endurance["endure"](200, show=lambda line: None))
    assert grown.pop("MiB") < endurance["MOST_GROWTH"]
    assert all(value <= 0 for value in grown.values()), grown


def test_what_stays_behind_is_seen(one_thread):
    """A hook for each training, as if a handle were not removed."""
    endurance = runpy.run_path(str(SCRIPT))
    work, model = endurance["WORK"], endurance["MODEL"]
    work[:] = [lambda seed: model.register_forward_hook(lambda *_: None)]
    assert endurance["growth"](endurance["endure"](20, show=lambda line: None))["hooks"] == 8
