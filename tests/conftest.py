import os

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each of several workers
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

#: How many cases each property is tried on: a few by ``make test``, many by ``make test-rest``.
EXAMPLES = {"quick": 50, "exhaustive": 1500}
for name, count in EXAMPLES.items():
    settings.register_profile(
        name,
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")


def pytest_make_parametrize_id(val, argname):
    """No test is named by bytes: compressed ones hold the time, and workers would not agree."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def tf32():
    """float32 products may be made with fewer bits, as many programs allow it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def one_thread():
    """Networks may be so small that a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
