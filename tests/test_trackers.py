"""Runs that trackers kept: what they wrote for real is read, and written anew where they are."""

from __future__ import annotations

import gzip
import importlib
import os
import shlex
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tracker_runs
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.runs import app
from advisor.errors import RunError, UsageError, pip_hint
from advisor.records import Instances, RunRecord, formats, read_records
from advisor.records.importers.wandb_log import payloads
from advisor.train.backends import workers

KEPT = Path(__file__).parent / "data" / "trackers"
(LOG,) = (KEPT / "wandb").rglob("*.wandb")
BLOCK, HEADER = 32768, b":W&B\xe1\xbe\x00"
MACHINE = Instances(
    provider="aws", instance_type="m5.large", vcpus=2.0, memory_gib=8.0, price_usd_per_h=0.096
)
TABLE = """run,program,time_s,machine,cost_usd,batch_size,optimizer,status
a,resnet,3600,2 x aws:g5.xlarge,2.4,64,adam,ok
b,resnet,1800,aws:g5.xlarge,,32,adam,ok
c,resnet,900,,,32,adam,censored
d,resnet,,,,32,sgd,oom
"""


def log_of(records: list[bytes]) -> bytes:
    """Write a log as LevelDB does: the oracle of the reader."""
    content = bytearray(HEADER)
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            left = BLOCK - len(content) % BLOCK
            if left < 7:
                content += bytes(left)
                left = BLOCK
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[
                is_first, not rest
            ]
            checksum = zlib.crc32(bytes([kind]) + part)
            content += struct.pack("<IHB", checksum, len(part), kind) + part
            is_first = False
    return bytes(content)


@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 50), st.integers(BLOCK - 30, BLOCK + 30), st.just(3 * BLOCK)),
        max_size=6,
    )
)
def test_a_log_gives_back_the_records_that_were_written(sizes: list[int]) -> None:
    records = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    assert list(payloads(log_of(records))) == records


@given(cut=st.integers(0, LOG.stat().st_size))
def test_a_log_cut_anywhere_gives_a_beginning_of_its_records(cut: int) -> None:
    """As a run that was killed leaves it."""
    content = LOG.read_bytes()
    whole = list(payloads(content))
    assert len(whole) > 20
    if cut < len(HEADER):
        with pytest.raises(ValueError, match="begin"):
            list(payloads(content[:cut]))
        return
    some = list(payloads(content[:cut]))
    assert some == whole[: len(some)]


@given(at=st.integers(len(HEADER), LOG.stat().st_size - 1), bit=st.integers(0, 7))
def test_a_damaged_log_ends_where_the_damage_is(at: int, bit: int) -> None:
    content = bytearray(LOG.read_bytes())
    whole = list(payloads(bytes(content)))
    content[at] ^= 1 << bit
    some = list(payloads(bytes(content)))
    assert len(some) < len(whole)
    assert some == whole[: len(some)]


def check(run: RunRecord, *, cores: float | None) -> None:
    """Hold a run of ``tracker_runs`` to what it did: three seconds with one core busy."""
    assert run.time_s is not None
    assert 2.5 < run.time_s < 60.0
    assert run.status == "ok"
    assert run.job.facts["batch"] == tracker_runs.SETTINGS["batch_size"]
    assert run.job.facts["learning_rate"] == tracker_runs.SETTINGS["learning_rate"]
    if cores is None:
        return
    (series,) = run.series
    used = series.channels["cpu_cores"]
    assert len(used) == series.readings >= 1  # the sampler decides how many in three seconds
    assert max(used) > 0.0
    assert all(0.0 <= value <= 1.05 * cores for value in used)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    path.write_bytes(gzip.decompress((KEPT / "mlflow.db.gz").read_bytes()))
    return path


@pytest.mark.frameworks
class TestKept:
    """The files that lie in the repository, as the trackers wrote them."""

    @pytest.mark.parametrize("said", [None, MACHINE])
    def test_wandb_offline(self, said: Instances | None) -> None:
        (run,) = formats.read_runs_as("wandb", KEPT / "wandb", said)
        check(run, cores=2.0)
        assert run.job.family == "tracker_runs"
        machine = run.configuration[0]
        assert (machine.instance_type, machine.vcpus) == ("vm" if said is None else "m5.large", 2)
        assert run.series[0].channels["memory_bytes"][-1] > 10e6

    def test_a_wandb_run_that_was_killed_is_a_lower_bound(self, tmp_path: Path) -> None:
        (tmp_path / "run-x.wandb").write_bytes(LOG.read_bytes()[:-200])
        (run,) = formats.read_runs_as("wandb", tmp_path)
        assert run.status == "censored"
        assert run.time_s is not None
        assert run.time_s > 0

    def test_mlflow_file_store(self) -> None:
        (run,) = formats.read_runs_as("mlflow", KEPT / "mlruns", MACHINE)
        check(run, cores=2.0)
        assert run.cost_usd == pytest.approx(0.096 * (run.time_s or 0) / 3600)

    def test_mlflow_folders_inside_the_store(self) -> None:
        (store,) = formats.read_runs_as("mlflow", KEPT / "mlruns")
        (experiment,) = [one for one in (KEPT / "mlruns").glob("[!.]*") if one.is_dir()]
        (folder,) = [one for one in experiment.iterdir() if one.is_dir()]
        for inside in (experiment, folder):
            assert formats.read_runs_as("mlflow", inside) == [store]

    def test_mlflow_database(self, database: Path) -> None:
        (run,) = formats.read_runs_as("mlflow", database, MACHINE)
        check(run, cores=2.0)
        assert formats.read_runs_as("mlflow", database.parent, MACHINE) == [run]

    def test_without_a_machine_mlflow_keeps_what_needs_no_cores(self, database: Path) -> None:
        (run,) = formats.read_runs_as("mlflow", database)
        assert run.configuration[0].instance_type == "unknown"
        assert "cpu_cores" not in run.series[0].channels
        assert max(run.series[0].channels["memory_bytes"]) > 0
        assert run.cost_usd is None

    def test_a_file_that_is_no_store_of_mlflow_stays_as_it_is(self, tmp_path: Path) -> None:
        import sqlite3

        other = tmp_path / "mine.db"
        sqlite3.connect(other).execute("create table mine (x)").connection.commit()
        before = other.read_bytes()
        with pytest.raises(RunError, match="not an MLflow database"):
            formats.read_runs_as("mlflow", other)
        assert other.read_bytes() == before
        assert sorted(tmp_path.iterdir()) == [other]

    def test_tensorboard(self) -> None:
        (run,) = formats.read_runs_as("tensorboard", KEPT / "tensorboard", MACHINE)
        assert run.time_s is not None
        assert 2.5 < run.time_s < 60.0
        assert run.job.family == "line-fit"
        rate = run.series[0].channels["steps_per_s"]
        steps = sum(rate) * run.series[0].interval_s
        assert steps == pytest.approx(tracker_runs.STEPS - 1, rel=0.15)

    def test_tensorboard_settings_and_load(self, tmp_path: Path) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        writer = module.SummaryWriter(str(tmp_path / "run"))
        writer.add_hparams({"batch_size": 16, "model": "x"}, {}, run_name=".")
        for step in range(20):
            later = time.time() + step
            writer.add_scalar("DeviceStats/cpu_percent", 75.0, step, walltime=later)
        writer.close()
        runs = formats.read_runs_as("tensorboard", tmp_path, MACHINE)
        (run,) = [one for one in runs if one.series]
        assert run.job.facts["batch"] == 16.0
        assert set(run.series[0].channels["cpu_cores"]) == {1.5}


@pytest.mark.frameworks
@pytest.mark.parametrize("tracker", ["wandb", "mlflow-files", "mlflow-database", "tensorboard"])
def test_a_run_tracked_now_is_read(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the version that is installed, whatever it writes."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    store = tmp_path / "mlruns" if tracker == "mlflow-files" else tmp_path / "mlflow.db"
    uri = store.as_uri() if tracker == "mlflow-files" else f"sqlite:///{store}"
    write: dict[str, Callable[[], None]] = {
        "wandb": lambda: tracker_runs.with_wandb(tmp_path),
        "mlflow-files": lambda: tracker_runs.with_mlflow(uri, tmp_path / "kept"),
        "mlflow-database": lambda: tracker_runs.with_mlflow(uri, tmp_path / "kept"),
        "tensorboard": lambda: tracker_runs.with_tensorboard(tmp_path / "tb"),
    }
    began = time.monotonic()
    write[tracker]()
    took_s = time.monotonic() - began
    (run,) = formats.read_runs_as(tracker.partition("-")[0], tmp_path, MACHINE)
    assert run.time_s is not None
    assert 2.5 < run.time_s <= took_s + 1.0
    if tracker != "tensorboard":  # its event files know neither settings nor load
        check(run, cores=2.0)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        loaded = [one for one in sys.modules if one.startswith(f"{name}.")]
        for one in (name, *loaded):
            monkeypatch.setitem(sys.modules, one, None)
        folder = KEPT / ("mlruns" if name == "mlflow" else name)
        with pytest.raises(RunError, match=f"read with {name}, which is not installed") as error:
            formats.read_runs_as(name, folder)
        assert error.value.hint == pip_hint(name)
    with pytest.raises(UsageError) as misspelt:
        formats.read_runs_as("mlfow", KEPT)
    assert "did you mean mlflow?" in misspelt.value.hint


def test_a_table_of_parquet_without_its_library_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "fastparquet"):
        for one in [name, *(loaded for loaded in sys.modules if loaded.startswith(f"{name}."))]:
            monkeypatch.setitem(sys.modules, one, None)
    (tmp_path / "anchor_g4dn.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match="read with pyarrow, which is not installed") as error:
        formats.read_runs_as("profet", tmp_path)
    assert error.value.hint == pip_hint("pyarrow")
    assert "\n" not in str(error.value)


def test_what_installs_a_library_installs_it_where_the_advisor_runs() -> None:
    """Not where some ``pip`` on PATH belongs to: the words are a command that a shell reads."""
    words = shlex.split(pip_hint("dask[distributed]"))
    assert words == [sys.executable, "-m", "pip", "install", "dask[distributed]"]


def test_a_backend_that_is_not_installed_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for backend, module in (("dask", "distributed"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UsageError, match="is not installed") as error, workers(backend):
            pass
        assert error.value.hint.startswith(f"{sys.executable} -m pip install")
        assert backend in error.value.hint


class TestTable:
    def test_a_row_a_run(self, tmp_path: Path) -> None:
        (tmp_path / "runs.csv").write_text(TABLE)
        a, b, c, d = formats.read_runs_as("csv", tmp_path / "runs.csv", MACHINE)
        assert (a.configuration[0].count, a.configuration[0].accelerators) == (2, 1)
        assert a.cost_usd == 2.4
        assert b.cost_usd == pytest.approx(0.096 * 0.5)  # --price where the row has none
        assert (c.configuration, c.status) == ((MACHINE,), "censored")
        assert (d.time_s, d.status) == (None, "oom")
        assert {one.job.family for one in (a, b, c, d)} == {"resnet"}
        assert len({one.job.job_id for one in (a, b, c, d)}) == 3  # b and c are one job
        assert a.job.facts == {"batch": 64.0, "optimizer": "adam"}

    @pytest.mark.parametrize(("row", "what"), [
        ("x,resnet,soon,,,,,ok", "time_s"),
        ("x,resnet,10,no-such-type,,,,ok", "machine"),
        ("x,resnet,10,,,,,done", "status"),
        ("x,resnet,10,,cheap,,,ok", "cost_usd"),
    ])  # fmt: skip
    def test_a_bad_cell_is_named(self, tmp_path: Path, row: str, what: str) -> None:
        (tmp_path / "runs.csv").write_text(TABLE + row + "\n")
        with pytest.raises(RunError, match=rf"runs\.csv: row 5: {what}: "):
            formats.read_runs_as("csv", tmp_path / "runs.csv")

    def test_the_verb_puts_machine_and_price(self, tmp_path: Path) -> None:
        table, out = tmp_path / "runs.csv", tmp_path / "records.jsonl"
        table.write_text("program,time_s\nfit,7200\n")
        arguments = ["import", "csv", str(table), "--out", str(out), "--price", "0.5"]
        done = CliRunner().invoke(app, [*arguments, "--machine", "2 x aws:g5.xlarge"])
        assert done.exit_code == 0, done.output
        (run,) = read_records(out)
        machine = run.configuration[0]
        assert (machine.provider, machine.instance_type, machine.count) == ("aws", "g5.xlarge", 2)
        assert machine.vcpus == 4.0
        assert run.cost_usd == pytest.approx(2.0)
        done = CliRunner().invoke(app, arguments)
        (run,) = read_records(out)
        assert run.cost_usd == pytest.approx(1.0)
        assert "--machine" in done.output

    def test_a_format_that_names_its_machines_takes_no_others(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="name their own machines"):
            formats.read_runs_as("scout", tmp_path, MACHINE)


def test_the_kept_files_are_small() -> None:
    sizes = [path.stat().st_size for path in KEPT.rglob("*") if path.is_file()]
    assert sum(sizes) < 200_000
