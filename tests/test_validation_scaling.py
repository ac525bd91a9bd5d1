"""Protocols series-mlperf, scaling and oom, on tables written here and on the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor import data, validation
from advisor.errors import ModelError
from advisor.validation import series_mlperf

needs_measurements = pytest.mark.skipif(
    data.shared() is None, reason="no public measurements here"
)


def shared() -> Path:
    found = data.shared()
    assert found is not None
    return found / "data"


def write_entries(folder: Path, growth: float) -> None:
    """Series whose throughput grows with the system to the power ``growth``."""
    lines = ["round,org,benchmark,accelerator,n_accelerators,samples_per_s,global_batch_size"]
    for benchmark in ("a", "b", "c"):
        lines += [
            f"v1,o,{benchmark},T4,{n},{100 * n**growth},{32 * n}" for n in (8, 16, 32, 64, 128)
        ]
    table = folder / "measurements" / "mlperf" / "mlperf_entries.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(lines) + "\n")


def test_a_power_law_is_learnt_from_the_other_benchmarks(tmp_path: Path) -> None:
    write_entries(tmp_path, 0.8)
    result = validation.run("series-mlperf", tmp_path)
    assert result.overall.rows == 12
    assert result.overall.mape_fraction < 0.03
    assert result.baselines["linear"].mape_fraction > 0.2


def test_one_benchmark_cannot_be_left_out(tmp_path: Path) -> None:
    write_entries(tmp_path, 0.8)
    table = tmp_path / "measurements" / "mlperf" / "mlperf_entries.csv"
    kept = [row for row in table.read_text().splitlines() if ",b," not in row and ",c," not in row]
    table.write_text("\n".join(kept))
    with pytest.raises(ModelError, match="at least two benchmarks"):
        validation.run("series-mlperf", tmp_path)


@pytest.mark.parametrize("protocol", ["scaling", "series-mlperf", "oom", "failures"])
def test_missing_measurements_are_one_error(tmp_path: Path, protocol: str) -> None:
    with pytest.raises(ModelError):
        validation.run(protocol, tmp_path)


@needs_measurements
def test_larger_systems_are_predicted_better_than_linearly() -> None:
    result = series_mlperf.run(shared())
    assert result.overall.median_ape_fraction < result.baselines["linear"].median_ape_fraction / 2
    assert 0.85 <= (result.overall.coverage or 0.0) <= 0.95


@needs_measurements
def test_memory_is_predicted_better_than_by_the_formula() -> None:
    result = validation.run("oom", shared())
    assert result.overall.mape_fraction < 0.12  # all five tables; 0.077 without the two worst
    assert result.baselines["Megatron's formula"].mape_fraction > 0.4
    for rule, sign in (("at ", -1), (" GiB kept free", 1)):
        found = [
            v for k, v in result.figures.items() if rule in k and k.endswith("failures found")
        ]
        assert len(found) > 3
        # A higher threshold never finds more, more memory kept free never less.
        assert np.all(sign * np.diff(found) >= 0)
