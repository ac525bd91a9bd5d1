"""``advisor validate TABLE``: made-up tables whose truth is known (synthetic, not measured)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import AdvisorError, ModelError, UsageError
from advisor.lab.score.tables import SUITES, score_table
from advisor.machines.devices import suite_device

RUN = CliRunner()
GPUS = ("V100-32GB", "RTX-3090", "RTX-A6000", "A100-SXM-40GB", "H100-SXM-80GB", "RTX-2080Ti")


def made_up(
    gpus: tuple[str, ...] = GPUS, jobs: int = 4, wrong: dict[str, float] | None = None
) -> pd.DataFrame:
    """Return throughputs of exact rooflines a / peak + b / bandwidth, in Lambda's form.

    ``wrong`` multiplies the throughput of some jobs.
    """
    rows = []
    for gpu in gpus:
        device = suite_device(gpu)
        assert device is not None
        for job in range(jobs):
            seconds = (1 + job) * 1e11 / (device.fp16_flop_per_s or 1.0)
            seconds += 3e9 / device.memory_bytes_per_s
            throughput = 64 / seconds * (wrong or {}).get(f"job{job}", 1.0)
            rows.append(
                {"system": gpu, "n_gpus": 1.0, "model": f"job{job}", "precision": "fp16",
                 "throughput": throughput, "batch_per_gpu": 64.0, "gpu": gpu}
            )  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def suite_folder(tmp_path: Path) -> Path:
    """Measurements in which Lambda's place holds the made-up devices but the last."""
    place = tmp_path / "data" / SUITES[0].form.published
    place.parent.mkdir(parents=True)
    made_up(GPUS[:-1]).to_csv(place, index=False)
    return tmp_path / "data"


def named(gpu: str) -> str:
    device = suite_device(gpu)
    assert device is not None
    return device.name


def _write(tmp_path: Path, table: pd.DataFrame) -> Path:
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False)
    return path


def test_a_device_is_predicted_from_the_published_ones(tmp_path: Path, suite_folder: Path) -> None:
    path = _write(tmp_path, made_up(GPUS[-1:]))
    found = score_table(path, suite_folder)
    assert found.protocol.name == "gpu"
    assert [g.group for g in found.groups] == [named(GPUS[-1])]
    assert found.overall.rows == 4
    assert found.overall.median_ape_fraction < 0.1
    for name in ("mean of the other devices", "peak FLOP/s ratio (const. MFU)",
                 "bandwidth ratio", "plain roofline"):  # fmt: skip
        assert name in found.baselines
    # The truth is a roofline: that baseline is exact, the others are not.
    assert found.baselines["plain roofline"].mape_fraction < 1e-6
    assert found.baselines["bandwidth ratio"].mape_fraction > 0.01


def test_published_rows_of_a_scored_device_are_not_used(
    tmp_path: Path, suite_folder: Path
) -> None:
    """The published suite knows the device, under another name, with absurd numbers."""
    place = suite_folder / SUITES[0].form.published
    lies = made_up((GPUS[-1],)).assign(gpu="GeForce RTX 2080 Ti")
    lies["throughput"] *= 10
    path = _write(tmp_path, made_up(GPUS[-1:]))
    honest = score_table(path, suite_folder)
    pd.concat([pd.read_csv(place), lies]).to_csv(place, index=False)
    assert score_table(path, suite_folder).overall == honest.overall


def test_a_card_in_two_makers_machines_is_one_device(tmp_path: Path, suite_folder: Path) -> None:
    """Else what one tells of the card would be known when the other is scored."""
    table = made_up(GPUS[-1:])
    honest = score_table(_write(tmp_path, table), suite_folder)
    table.loc[table.index % 2 == 1, "gpu"] = f"Maker 2x {named(GPUS[-1])}"
    found = score_table(_write(tmp_path, table), suite_folder)
    one, other = found.to_record()["overall"], honest.to_record()["overall"]
    assert one == pytest.approx(other, rel=1e-12)  # other rows, other order of a sum
    assert [g.group for g in found.groups] == [named(GPUS[-1])]


def test_a_table_stands_alone_without_published_rows(tmp_path: Path) -> None:
    found = score_table(_write(tmp_path, made_up()), None)
    assert {g.group for g in found.groups} == set(map(named, GPUS))
    assert any("alone" in note for note in found.notes)


def test_wrong_units_are_refused_with_the_row(tmp_path: Path, suite_folder: Path) -> None:
    table = made_up(GPUS[-1:], wrong={"job2": 1000.0})
    with pytest.raises(ModelError, match=r"implausible.*job2.*times what other devices") as caught:
        score_table(_write(tmp_path, table), suite_folder)
    assert "units" in caught.value.hint


def test_a_throughput_that_is_not_positive_is_refused_with_the_row(
    tmp_path: Path, suite_folder: Path
) -> None:
    table = made_up(GPUS[-1:], wrong={"job1": -3.0})
    with pytest.raises(ModelError, match="job1"):
        score_table(_write(tmp_path, table), suite_folder)


def test_layer_times_beyond_the_device_are_refused_with_the_row(tmp_path: Path) -> None:
    row = {"model": "gpt_6.7b", "gpu": "a100x40", "seq": 2048, "dtype": "float16", "hidden": 4096,
           "n_layers": 32, "params_per_layer": 201e6, "micro_batch": 4, "fwd_ms": 0.01,
           "bwd_ms": 0.03}  # fmt: skip
    with pytest.raises(ModelError, match="peak") as caught:
        score_table(_write(tmp_path, pd.DataFrame([row])), None)
    assert "ms" in caught.value.hint


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pd.DataFrame({"a": [1]}), "of no known suite"),
        (made_up().assign(gpu="abacus"), "no device of the table"),
        (made_up(GPUS[:1]), "measured on another device"),
    ],
)
def test_what_cannot_be_scored_is_refused(tmp_path: Path, table: pd.DataFrame, says: str) -> None:
    with pytest.raises(AdvisorError, match=says) as caught:
        score_table(_write(tmp_path, table), None)
    assert caught.value.hint


def test_a_missing_table_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot read the table"):
        score_table(Path("nowhere.csv"), None)


def test_the_command_line_takes_a_table(tmp_path: Path, suite_folder: Path) -> None:
    path = _write(tmp_path, made_up(GPUS[-1:]))
    shown = RUN.invoke(app, ["validate", str(path), "--data", str(suite_folder)])
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines()[:12])) <= 80
    done = RUN.invoke(app, ["validate", str(path), "--data", str(suite_folder), "--json"])
    record = json.loads(done.stdout)
    assert {"rows", "overall", "groups", "baselines"} <= set(record)
    assert {"mape_fraction", "median_ape_fraction", "p90_ape_fraction", "bias", "spearman"} <= set(
        record["groups"][0]
    )
    assert np.isfinite(record["overall"]["spearman"])
