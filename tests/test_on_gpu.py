"""Measuring a lent GPU: it goes on where it stopped, and its record says what was found."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.lab.experiments import zoo
from advisor.lab.speed import on_gpu


def _parts(made: list[str], failing: frozenset[str] = frozenset()) -> list[on_gpu.Part]:
    def run(name: str) -> dict[str, Any]:
        made.append(name)
        if name in failing:
            raise RuntimeError("out of memory")
        return {"measured": {"step_s": 1.0}}

    return [
        on_gpu.Part(name=name, run=lambda name=name: run(name))  # type: ignore[misc]
        for name in ("a", "b", "c", "d")
    ]


def test_what_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    record = on_gpu.Record(tmp_path / "record.jsonl")
    made: list[str] = []
    ticks = count()
    left = on_gpu.measure(_parts(made), record, until_s=4, clock=lambda: float(next(ticks)))
    assert (made, left) == (["a", "b"], ["c", "d"])
    assert on_gpu.measure(_parts(made), record, until_s=1e9) == []
    assert made == ["a", "b", "c", "d"]
    assert list(record.read()) == ["a", "b", "c", "d"]


def test_a_part_that_failed_is_noted_and_tried_again(tmp_path: Path) -> None:
    record = on_gpu.Record(tmp_path / "record.jsonl")
    made: list[str] = []
    assert on_gpu.measure(_parts(made, frozenset("b")), record, until_s=1e9) == ["b"]
    assert "out of memory" in record.path.read_text()
    assert list(record.read()) == ["a", "c", "d"]
    made.clear()
    assert on_gpu.measure(_parts(made), record, until_s=1e9) == []
    assert made == ["b"]


@given(cut=st.integers(0, 10_000))
def test_a_record_cut_off_anywhere_keeps_its_whole_lines_and_can_be_gone_on_with(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        record = on_gpu.Record(Path(folder) / "record.jsonl")
        on_gpu.measure(_parts([]), record, until_s=1e9)
        text = record.path.read_text()
        kept = text[: cut % (len(text) + 1)]
        record.path.write_text(kept)
        assert len(record.read()) in (kept.count("\n"), kept.count("\n") + 1)
        on_gpu.measure(_parts([]), record, until_s=1e9)
        assert sorted(record.read()) == ["a", "b", "c", "d"]


def _part(measured_s: float, said_s: float, peak: float | None = None) -> dict[str, Any]:
    bounds = {"value": said_s, "low": said_s / 1.2, "high": said_s * 1.2}
    return {
        "measured": {"step_s": measured_s, "peak_bytes": peak},
        "said": {"step_s": bounds, "memory_gib": 2.0},
    }


def test_a_script_said_from_the_processor_is_judged_by_the_gpu() -> None:
    cpu, gpu = _part(8.0, 1.1), {"measured": {"step_s": 1.0}}
    done = {
        "zoo/vae.py/said": cpu, "zoo/vae.py/gpu": gpu,
        "step/1/bf16/eager/gpu": {"measured": {"step_s": 1.0, "peak_bytes": 2.0**30}},
        "step/1/bf16/eager/said": {"said": _part(1.0, 2.0)["said"]},
    }  # fmt: skip
    rows = {row["part"]: row for row in on_gpu.summary(done)["rows"]}
    assert len(rows) == 2
    assert rows["zoo/vae.py"]["ratio"] == pytest.approx(1.1)
    assert rows["zoo/vae.py"]["is_inside"]
    assert rows["step/1/bf16/eager"]["ratio"] == pytest.approx(2.0)
    assert rows["step/1/bf16/eager"]["memory_ratio"] == pytest.approx(2.0)
    assert not rows["step/1/bf16/eager"]["is_inside"]
    errors = on_gpu.summary(done)["errors"]
    assert errors["step"]["bias"] == pytest.approx(2.0)
    kinds = ("step", "profiled", "zoo", "rehearsed")
    assert on_gpu.summary({})["errors"] == dict.fromkeys(kinds)


def test_every_part_is_named_once_and_covers_what_was_asked_for(tmp_path: Path) -> None:
    names = [part.name for part in on_gpu.parts(tmp_path, "NVIDIA L4", seconds=8.0)]
    assert len(names) == len(set(names))
    measured = {name.removesuffix("/gpu") for name in names if name.endswith("/gpu")}
    said = {name.removesuffix("/said") for name in names if name.endswith("/said")}
    assert measured == said
    assert sum(name.startswith("step/") for name in said) == 3 * 2 * 2
    scripts = {name.removeprefix("zoo/") for name in said if name.startswith("zoo/")}
    assert scripts == set(on_gpu.SCRIPTS)
    assert scripts <= {script.path.name for script in zoo.scripts()}
    rehearsed = {name for name in said if name.startswith("rehearsed/")}
    assert len(rehearsed) == len(on_gpu.REHEARSED)
    assert {"machine", "device sheet", "loader/0"} <= set(names)


@pytest.mark.parametrize("name", on_gpu.SCRIPTS)
def test_a_script_of_the_zoo_uses_a_gpu_that_is_there(name: str) -> None:
    """Or what was measured on the GPU's machine would be its processor."""
    (script,) = (one for one in zoo.scripts() if one.path.name == name)
    text = script.path.read_text("utf-8")
    assert "cuda" in text
    assert 'accelerator="cpu"' not in text


def test_nothing_but_what_was_measured_is_said_of_another_machines_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "record.jsonl").write_text(
        json.dumps({"part": "step/12x768/bf16/eager/gpu", "measured": {"step_s": 1.0}}) + "\n"
    )
    argv = ["on_gpu", "--out", str(tmp_path), "--gpu", "NVIDIA L4", "--minutes", "0"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        on_gpu.main()
    assert ended.value.code == 3  # its time was up before
    assert json.loads((tmp_path / "summary.json").read_text())["rows"] == []


@pytest.mark.slow
def test_a_transformer_is_measured_and_said_on_this_machine(tmp_path: Path) -> None:
    """A real run of the smallest part; what it takes is not looked at."""
    command = [
        sys.executable, "-m", "advisor.lab.speed.on_gpu", "--out", str(tmp_path), "--dry",
        "--only", "step/1x32/fp32/eager/",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=zoo.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert row["measured_s"] > 0
    assert row["said_s"] > 0
    again = subprocess.run(command, cwd=zoo.ROOT, capture_output=True, text=True, check=False)
    assert "step/1x32/fp32/eager/" not in again.stdout
    assert "left: nothing" in again.stdout
