"""What README and examples show is run."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python_blocks(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_readme_code_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks("README.md")
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "README.md", "exec"), {})
    assert "spectral_norm" in capsys.readouterr().out
    assert (tmp_path / "checkpoint.pt").exists()


def test_every_link_to_a_file_leads_somewhere():
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([\w./-]+)\)", document.read_text()):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("arguments", [["--sizes", "40", "--seeds", "2"]])
def test_digits_example_prints_its_table(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["digits.py", *arguments])
    runpy.run_path(str(ROOT / "examples/digits.py"), run_name="__main__")
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.strip().startswith("40")]
    assert [re.search(r"none|AdaReg \S+", row).group() for row in rows] == [
        "none",
        "AdaReg 1e-4",
        "AdaReg auto",
    ]
    assert all(row.count("±") == 4 for row in rows)
