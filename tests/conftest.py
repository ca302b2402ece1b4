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
