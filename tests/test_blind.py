"""Blind predictions do not see the scored group: its measurements changed, they stay the same.

Tables are made up (synthetic) but for the published runs of the last tests. "The same" is bit for
bit: a warm start from a fit that knew the group would show.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from advisor.lab.data import LAMBDA
from advisor.lab.fit.described import read_steps
from advisor.lab.fit.described_columns import columns
from advisor.lab.fit.efficiencies import StepModel
from advisor.lab.score import described
from advisor.lab.score.cells import CellTable, cell_table, left_out
from advisor.machines.devices import suite_device

GPUS = ("V100-32GB", "RTX-2080Ti", "RTX-3090", "A100-PCIe-40GB", "RTX-A6000", "H100-SXM-80GB")


# Devices --------------------------------------------------------------------------------------


def throughputs(wrong: str | None = None) -> CellTable:
    """Return cells of rooflines with noise; ``wrong`` is a device that is thrice as fast."""
    noise = np.random.default_rng(1)
    rows = []
    for gpu in GPUS:
        device = suite_device(gpu)
        assert device is not None
        for number in range(4):
            seconds = (1 + number) * 1e11 / (device.fp16_flop_per_s or 1.0)
            seconds += 3e9 / device.memory_bytes_per_s
            factor = np.exp(0.1 * noise.standard_normal()) * (3.0 if gpu == wrong else 1.0)
            rows.append(
                {"gpu": gpu, "precision": "fp16", "model": f"job{number}", "batch": 64.0,
                 "throughput": 64 / seconds * factor, "count": 3}
            )  # fmt: skip
    return cell_table(pd.DataFrame(rows))


def test_a_device_has_no_part_in_its_own_answer() -> None:
    """A job known by its runs is answered from its runs on the other devices alone."""
    table, spoilt = throughputs(), throughputs(GPUS[2])
    out = (table.frame["gpu"] == GPUS[2]).to_numpy()
    names = table.frame["device"].to_numpy()
    one, sd = left_out(table, names)
    other, other_sd = left_out(spoilt, names)
    assert np.array_equal(one[out], other[out])
    assert np.array_equal(sd[out], other_sd[out])
    assert not np.allclose(one[~out], other[~out])


def described_rows(folder: Path, wrong: str | None = None) -> Path:
    """Write made-up throughputs in the form of Lambda's suite."""
    rows = [
        {"system": gpu, "n_gpus": 1.0, "model": "bert_base_squad", "precision": precision,
         "throughput": 80.0 * (i + 1) * (2.0 if gpu == wrong else 1.0), "batch_per_gpu": 8.0,
         "gpu": gpu}
        for i, gpu in enumerate(GPUS)
        for precision in ("fp16", "fp32")
    ]  # fmt: skip
    path = folder / LAMBDA.tables["throughputs"].published
    path.parent.mkdir(parents=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    return folder


def test_a_described_job_is_answered_without_its_device(tmp_path: Path) -> None:
    answers = []
    for name, wrong in (("right", None), ("wrong", GPUS[3])):
        steps = read_steps(described_rows(tmp_path / name, wrong))
        rows = columns(steps)
        out = rows.device == suite_name(GPUS[3])
        assert out.any()
        folds = {"device": [(out, StepModel(rows).fit(~out))]}
        found = described.left_out_answers(described._rows(steps, steps), folds, None)
        answers.append([found[i].step_s for i in np.flatnonzero(out)])
    assert answers[0] == answers[1]


def suite_name(gpu: str) -> str:
    device = suite_device(gpu)
    assert device is not None
    return device.name
