"""What README and examples show is run."""

import json
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


def test_readmes_costs_are_those_of_the_records():
    text = " ".join((ROOT / "README.md").read_text().split())
    gpu, cpu = (json.loads((ROOT / f"results/bench/{n}.json").read_text()) for n in ("cuda", "cpu"))

    def head(record):
        (row,) = (r for r in record["updates"] if r["p"] == 50257)
        return row["seconds"]["joint"]["median"], row["seconds"]["alternating"]["median"]

    assert f"head takes {1e3 * head(gpu)[0]:.0f} ms on an H200" in text
    assert "about two seconds on two cores" in text
    assert all(1 < seconds < 3 for seconds in head(cpu))
    ratios = [t["value"] for t in gpu["targets"] if t["what"].startswith("step, ResNet")]
    assert f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long" in text
    small = [t["value"] for t in cpu["targets"] if t["what"].startswith("step, MNIST")]
    assert "costs a few percent on a CPU" in text
    assert max(small) < 1.04


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
