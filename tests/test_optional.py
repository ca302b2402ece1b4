"""Optional packages that are missing or too old say what to install."""

import importlib
import sys
from importlib import metadata

import pytest
import torch

import adareg
from adareg._optional import require

NEEDED = {
    "adareg.lightning": ("lightning", "2.5", "lightning"),
    "adareg.transformers": ("transformers", "4.49", "transformers"),
}


@pytest.fixture
def _fresh(monkeypatch):
    """As if no integration had been imported yet; those that were are put back."""
    for name in NEEDED:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delitem(vars(adareg), name.split(".")[1], raising=False)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("module", NEEDED)
def test_a_missing_package_is_named_with_the_command(module, monkeypatch):
    package, minimum, extra = NEEDED[module]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as error:
        importlib.import_module(module)
    assert str(error.value) == (
        f"{module} needs {package} {minimum} or newer, which is not installed; "
        f"in a checkout of AdaReg, run: pip install '.[{extra}]'"
    )
    assert error.value.name == package
    with pytest.raises(ImportError, match=f"{package} {minimum} or newer, which is not installed"):
        getattr(adareg, module.split(".")[1])
    assert module.split(".")[1] not in dir(adareg)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("module", NEEDED)
def test_too_old_a_package_is_told_which_is_needed(module, monkeypatch):
    package, minimum, extra = NEEDED[module]
    versions = {package: "1.9.5.post2"}
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or installed(name))
    message = f"{package} {minimum} or newer, and 1.9.5.post2 is installed"
    with pytest.raises(ImportError, match=message) as error:
        importlib.import_module(module)
    assert str(error.value).endswith(f"run: pip install --upgrade '.[{extra}]'")


@pytest.mark.parametrize(
    ("found", "minimum", "enough"),
    [
        ("2.10.0", "2.9", True),
        ("2.9", "2.10", False),
        ("5.0.0rc1", "4.45", True),
        ("1.6.dev0", "1.6", True),
        ("1.5.9", "1.6", False),
        ("unknown", "0.1", False),
    ],
)
def test_versions_compare_as_numbers(found, minimum, enough, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: found)
    if enough:
        require("torch", minimum, extra="any")
    else:
        with pytest.raises(ImportError, match=f"torch {minimum} or newer, and {found}"):
            require("torch", minimum, extra="any")


def test_the_distribution_may_have_another_name():
    with pytest.raises(ImportError, match="scikit-nothing 1.6 or newer, which is not installed"):
        require("torch", "1.6", extra="sklearn", distribution="scikit-nothing")


def test_a_plain_tensorboard_writer_takes_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    reg = adareg.AdaReg(torch.nn.Linear(4, 3))
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(3):
            for name, value in reg.metrics().items():
                writer.add_scalar(f"adareg/{name}", value, step)
            reg.update()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"adareg/{name}" for name in reg.metrics()}
    assert [e.step for e in events.Scalars("adareg/penalty")] == [0, 1, 2]
