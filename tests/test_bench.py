"""The benchmark runs, judges itself by its own record, and writes what it says it writes."""

import copy
import io
import json
import math
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import adareg
from adareg.bench import growth, report, steps, trainings, updates
from adareg.bench.reference import dense_update
from adareg.bench.timing import Timing, compare, peak_memory
from adareg.cli import app

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[1] / "results" / "bench"


def peak_here(prepare, arguments, device):
    """Without a process of its own, which ``peak_memory`` starts."""
    prepare(*arguments)()
    return 2**20


@pytest.fixture(scope="module")
def record():
    quick = {"SHAPES": [(4, 6), (6, 6)], "WIDTHS": (8, 16), "SQUARES": (4, 8), "COUNTS": (1, 3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "SHAPES", quick.pop("SHAPES"))
        patch.setattr(updates, "peak_memory", peak_here)
        patch.setattr(steps, "peak_memory", peak_here)
        patch.setattr(trainings, "WORKLOADS", trainings.WORKLOADS[:1])
        patch.setattr(trainings, "STEPS", 60)
        for name, value in quick.items():
            patch.setattr(growth, name, value)
        return report.run(CPU, 0.01, None, lambda text: None)


def test_the_reference_is_algorithm_1():
    W = torch.randn(5, 8, dtype=torch.float64)
    row, col = dense_update(W, (0.1, 10))
    ours = adareg.solve(W, "alternating", (0.1, 10))
    torch.testing.assert_close(ours.row.dense(), row)
    torch.testing.assert_close(ours.col.dense(), col)


def test_alternatives_are_timed_in_turns():
    order = []
    times = compare({n: lambda n=n: order.append(n) for n in "ab"}, CPU, 1e-9)
    assert set(times) == {"a", "b"}
    assert all(isinstance(t, Timing) and 0 < t.low <= t.median <= t.high for t in times.values())
    changes = sum(x != y for x, y in pairwise(order))
    assert changes >= 2 * times["a"].repetitions


def test_the_record_is_complete_and_plain(record):
    assert json.loads(json.dumps(record)) == record
    assert [row["p"] for row in record["updates"]] == [4, 6]
    for row in record["updates"]:
        assert set(row["seconds"]) == set(row["extra_memory"]) == {"joint", "alternating", "dense"}
        assert row["error"]["float32 precisions"] < 1e-5
    assert [row["workload"] for row in record["steps"]] == ["MNIST CNN, batch 256, last layer"]
    assert set(record["steps"][0]["peak_bytes"]) == {"without", "coupled", "proximal"}
    (row,) = record["trainings"]
    assert row["workload"] == "MLP 64-100-50-10, 60 steps of 64"
    assert set(row["seconds"]) == {"plain Adam", "with EvidenceReg"}
    assert row["machine"] == record["machine"]
    assert all(len(points) == 2 for points in record["growth"].values())


@pytest.mark.parametrize("workload", trainings.WORKLOADS, ids=lambda workload: workload.name)
def test_trainings_differ_in_the_regularizer_alone(monkeypatch, workload):
    monkeypatch.setattr(trainings, "STEPS", 2)
    monkeypatch.setattr(trainings, "BATCH", 3)
    monkeypatch.setattr(trainings, "SAMPLES", 5)
    made, kind = [], adareg.EvidenceReg
    monkeypatch.setattr(adareg, "EvidenceReg", lambda *args: made.append(kind(*args)) or made[-1])
    threads = torch.get_num_threads()
    for regularized in (False, True):
        trainings.prepare(workload, regularized, CPU)()
        assert len(made) == regularized
    assert made[0].is_attached
    assert torch.get_num_threads() == threads


@pytest.mark.exhaustive
def test_memory_on_a_cpu_is_that_of_the_action_alone():
    """Not of the libraries that its first run loads, nor less what an earlier run has freed."""
    small = peak_memory(updates.prepare, ("joint", 10, 50, "cpu"), CPU)
    assert small < 2**22  # a huge page may be among it; the libraries take twice that
    joint, sweep = (
        peak_memory(updates.prepare, (rule, 600, 700, "cpu"), CPU) / (4 * 600 * 700)
        for rule in ("joint", "alternating")
    )
    assert sweep > 0.9 * joint > 3


def test_the_large_network_has_resnets_size():
    model = steps.resnet18()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert len(adareg.AdaReg(model, "all").layers) == 21
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_slow_update_would_be_called_slow(record):
    slow = copy.deepcopy(record)
    slow["updates"][0]["seconds"]["alternating"]["median"] = math.inf
    slow["updates"][0]["error"]["float32 penalty"] = 1.0
    slow["steps"][0]["seconds"]["coupled"]["median"] *= 100
    slow["trainings"][0]["seconds"]["with EvidenceReg"]["median"] *= 100
    missed = {target.what for target in report.targets(slow) if not target.reached}
    assert "training, MLP 64-100-50-10, 60 steps of 64" in missed
    assert {"alternating / joint, 4 x 6", "error, float32 penalty, 4 x 6"} <= missed
    assert "step, MNIST CNN, batch 256, last layer, float32, coupled" in missed
    row = {**record["updates"][0], "p": 10, "d": 500}
    row["seconds"] = {name: {"median": 1.0} for name in ("joint", "alternating", "dense")}
    verdicts = {t.what: t.reached for t in report.targets({**record, "updates": [row]})}
    assert verdicts["dense / joint, 10 x 500"] is False


def test_files_are_written(record, tmp_path):
    data, figure = report.save(record, tmp_path / "new")
    assert json.loads(data.read_text()) == record
    assert ET.parse(figure).getroot().tag.endswith("svg")
    assert sorted(p.name for p in data.parent.iterdir()) == [figure.name, data.name]


def test_tables_are_printed(record):
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(record, console)
    text = console.export_text()
    assert "4 x 6" in text
    assert "what it comes to" in text
    assert "with EvidenceReg" in text


@pytest.mark.parametrize("name", ["cpu.json", "cuda.json"])
def test_committed_records_judge_themselves_as_today(name):
    record = json.loads((RESULTS / name).read_text())
    today = [t._asdict() | {"reached": t.reached} for t in report.targets(record)]
    assert today == record["targets"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--device", "tpu"], "'tpu': expected cpu or cuda"),
        (["bench", "--seconds", "0"], "0.01"),
        (["bench", "--largest", "0"], "1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


def test_a_folder_that_cannot_be_made_is_an_error_before_measuring(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(report, "run", lambda *args: pytest.fail("measured in vain"))
    result = CliRunner().invoke(app, ["bench", "--out", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert result.output.startswith("error: [Errno 17] File exists")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named():
    result = CliRunner().invoke(app, ["bench", "--device", "cuda"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "no GPU is available here; use cpu" in result.output
