import os

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each of several workers
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "adareg",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("adareg")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
