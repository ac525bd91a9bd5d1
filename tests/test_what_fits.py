"""Laws of ``advisor fit``: what it says makes a job fit does so when it is asked for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import InProcess

import advisor
from advisor.errors import UsageError
from advisor.estimate import Predictor
from advisor.words import fitting_text

# A model and the accelerators that it does not fit on without changes.
CASES: list[tuple[dict[str, Any], str, int]] = [
    ({"model": "llama3-8b", "batch": 8, "sequence": 2048}, "RTX4090", 1),
    ({"model": "llama3-8b", "batch": 64, "sequence": 4096, "stack": "deepspeed"}, "A100-40GB", 8),
    ({"model": "gpt2", "batch": 64}, "L4", 1),
]  # fmt: skip


def asked(record: dict[str, Any]) -> list[str]:
    return [part for k, v in record.items() for part in (f"--{k}", str(v))]


@pytest.mark.parametrize(("job", "gpu", "count"), CASES)
def test_the_changes_make_it_fit(
    job: dict[str, Any],
    gpu: str,
    count: int,
    predictor: Predictor,
    in_process: InProcess,
    tmp_path: Path,
) -> None:
    found = advisor.fit(gpu=gpu, count=count, predictor=predictor, **job)
    assert found.can_fit
    assert found.changes[-1].fits
    words = [*asked(job), *shlex.split(found.words), "--gpu", gpu, "--count", str(count)]
    result = in_process("predict", *words, "--total-steps", "10", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_each_change_says_what_it_gains_over_the_one_before(predictor: Predictor) -> None:
    job, gpu, count = CASES[0]
    found = advisor.fit(gpu=gpu, count=count, predictor=predictor, **job)
    needed, step_s = found.plain.needed_gib, found.plain.step_time_s
    for one in found.changes:
        assert one.needed_gib == pytest.approx(needed - one.gained_gib)
        assert one.step_time_s == pytest.approx(step_s * one.step_factor)
        needed, step_s = one.needed_gib, one.step_time_s


def test_what_fits_plainly_needs_no_change(predictor: Predictor) -> None:
    found = advisor.fit(gpu="H100", model="gpt2", batch=8, predictor=predictor)
    assert found.fits
    assert found.can_fit
    assert found.changes == ()


def test_the_smallest_machine_holds_it(
    predictor: Predictor, in_process: InProcess, tmp_path: Path
) -> None:
    found = advisor.fit(gpu="RTX4090", model="llama3-8b", batch=8, predictor=predictor)
    assert found.smallest is not None
    ((offer, count),) = found.smallest.parts
    words = ["--model", "llama3-8b", "--batch", "8", "--total-steps", "10"]
    machine = ["--on", f"{offer.provider}:{offer.instance_type}", "--count", str(count)]
    result = in_process("predict", *words, *machine, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_largest_micro_batch_fits_and_twice_it_does_not(
    in_process: InProcess, tmp_path: Path
) -> None:
    words = ["--model", "gpt2", "--gpu", "L4"]
    said = in_process("fit", *words, "--batch", "8", "--json", cwd=tmp_path)
    most = json.loads(said.stdout)["most_micro_batch"]
    plain = ["--recompute", "none", "--no-offload", "--total-steps", "10"]
    for size, is_sure in ((most, True), (2 * most, False)):
        one = ["--batch", str(size), "--micro-batch", str(size), "--json"]
        result = in_process("predict", *words, *plain, *one, cwd=tmp_path)
        fits = result.returncode == 0
        likely = json.loads(result.stdout)["memory"]["fits_probability"] if fits else 0.0
        assert (likely >= 0.9) == is_sure, result.stderr


def test_what_no_change_makes_fit_is_exit_code_3(in_process: InProcess, tmp_path: Path) -> None:
    words = ["--model", "llama3-70b", "--batch", "1", "--sequence", "4096", "--gpu", "T4"]
    result = in_process("fit", *words, cwd=tmp_path)
    assert result.returncode == 3
    assert "does not fit either" in result.stdout


def test_machines_are_named_in_one_way(in_process: InProcess, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either --on or --gpu"):
        advisor.fit(model="gpt2", batch=8)
    result = in_process("fit", "--model", "gpt2", "--batch", "8", "--gpu", "T44", cwd=tmp_path)
    assert result.returncode == 2


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int, predictor: Predictor) -> None:
    for job, gpu, count in CASES:
        record = advisor.fit(gpu=gpu, count=count, predictor=predictor, **job).to_record()
        assert max(map(len, fitting_text(record, width=width).splitlines())) <= width
