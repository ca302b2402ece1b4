"""The package as installed: light to import, small at large layers."""

import ast
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import adareg
from adareg.cli import app


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_torch_is_the_only_hard_dependency():
    hard = [r for r in requires("adareg") if "extra ==" not in r]
    assert hard == ["torch>=2.6"]
    assert adareg.__version__ == version("adareg")


def test_the_command_tells_its_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"adareg {version('adareg')}\n"


def test_import_brings_in_nothing_that_torch_does_not():
    code = (
        "import sys, torch; before = set(sys.modules); from adareg import *; "
        "print(*sorted(m for m in set(sys.modules) - before if m.split('.')[0] != 'adareg'))"
    )
    extra = set(run(code).split())
    standard = {m for m in extra if m.split(".")[0] in sys.stdlib_module_names}
    assert {m for m in extra - standard if not m.startswith("torch.nn.utils")} == set()
    assert len(extra) <= 5, extra


@pytest.mark.parametrize(
    "arguments", ["--version", "--help", "reproduce --help", "data --help", "bench --help"]
)
def test_the_command_imports_what_it_needs_when_it_is_called(arguments):
    code = f"""
import sys
from adareg.cli import app
app({arguments.split()}, "adareg", standalone_mode=False)
slow = "torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "ray", "adareg.core"
print(*(name for name in slow if name in sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert "adareg" in done.stdout


def test_public_names_are_imported_when_they_are_asked_for():
    code = "import sys, adareg; print('torch' in sys.modules, adareg.solve, 'torch' in sys.modules)"
    before, *solve, after = run(code).split()
    assert (before, solve[1], after) == ("False", "solve", "True")


def test_type_checkers_and_python_know_the_same_public_names():
    tree = ast.parse(Path(adareg.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {
        (alias.asname or alias.name): node.module.removeprefix("adareg").removeprefix(".")
        for node in checked.body
        for alias in node.names
    }
    integrations = dict.fromkeys(adareg._INTEGRATIONS, "")
    assert homes == adareg._HOMES | integrations
    assert adareg.__all__ == sorted(adareg._HOMES)
    assert all(hasattr(adareg, name) and name in dir(adareg) for name in adareg.__all__)


def test_integrations_are_there_when_they_are_asked_for():
    code = """
import sys, adareg
names = "lightning", "sklearn", "transformers"
print(*(name for name in names if name in sys.modules or f"adareg.{name}" in sys.modules))
print(set(names) <= set(dir(adareg)))
print(adareg.sklearn.AdaRegClassifier.__module__)
print(adareg.lightning.AdaRegCallback.__module__, adareg.transformers.AdaRegCallback.__module__)
"""
    assert run(code).splitlines() == [
        "True",
        "adareg.sklearn._estimators",
        "adareg.lightning adareg.transformers",
    ]
    with pytest.raises(AttributeError, match="'adareg' has no attribute 'sklaern'"):
        _ = adareg.sklaern


@pytest.mark.exhaustive
def test_a_language_models_head_fits_in_memory():
    """50257 x 768 in float32: the update needs less than three times the weight on top of it."""
    code = """
import resource, torch, adareg
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
torch.manual_seed(0)
head = torch.nn.Linear(768, 50257, bias=False)
small = adareg.AdaReg(torch.nn.Linear(100, 90)); small.update(); small.update()
for rule in ("alternating", "joint"):
    reg = adareg.AdaReg(head, rule=rule)
    before = peak()
    reg.update(); reg.update()
    print((peak() - before) / (head.weight.numel() * 4))
    del reg
"""
    first, second = map(float, run(code).split())
    assert first < 3
    assert second < 3
