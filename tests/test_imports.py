"""Runs that people have: the kind is told from the file, and what it says is kept."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import AdvisorError
from advisor.records import RunRecord, kind_of, read_records, read_runs_as

DMON = """#Date       Time        gpu    pwr     sm     fb
#YYYYMMDD   HH:MM:SS    Idx      W      %     MB
 20250102   23:59:58      0    300     90  30000
 20250102   23:59:58      1    310     80  32000
 20250102   23:59:59      0    300     90  30000
 20250102   23:59:59      1    310     80  32000
 20250103   00:00:00      0      -     90  30000
 20250103   00:00:00      1    310     80  32000
"""
QUERY = """timestamp, name, index, utilization.gpu [%], memory.used [MiB]
2024/05/01 12:00:01.123, NVIDIA A100-SXM4-80GB, 0, 88 %, 30000 MiB
2024/05/01 12:00:02.123, NVIDIA A100-SXM4-80GB, 0, 90 %, 30000 MiB
2024/05/01 12:00:03.123, NVIDIA A100-SXM4-80GB, 0, 92 %, 30000 MiB
"""
PIDSTAT = """Linux 5.15.0 (host) \t05/01/2024 \t_x86_64_\t(16 CPU)

11:59:59 AM   UID       PID    %usr %system    %CPU   CPU  Command
12:00:00 PM  1000      1234   99.00    1.00  100.00     3  python

12:00:00 PM   UID       PID    %usr %system    %CPU   CPU  Command
12:00:01 PM  1000      1234   99.00    1.00  100.00     3  python
12:00:01 PM  1000      1235   49.00    1.00   50.00     4  python

Average:      UID       PID    %usr %system    %CPU   CPU  Command
Average:     1000      1234   99.00    1.00  100.00     -  python
"""
KERNELS = """Time (%),Total Time (ns),Instances,Avg (ns),Name
60.0,600000000,1000,600000,"void cutlass::Kernel<s16816gemm>(T1::Params, int)"
30.0,300000000,500,600000,ncclDevKernel_AllReduce_Sum_f32_RING_LL
10.0,100000000,500,200000,"void at::native::vectorized_elementwise_kernel<4>(int)"
"""
RANGES = """ ** NVTX Range Summary (nvtx_sum):

 Time (%)  Total Time (ns)  Instances    Avg (ns)     Style    Range
 --------  ---------------  ---------  -------------  -------  --------
     99.0    3,100,000,000         10  310,000,000.0  PushPop  step
"""
# A line as each program prints it -> the step [s] that it says.
LOGS = {
    "iter 0: loss 9, time 5230.1ms, mfu -1%\niter 10: loss 9, time 310.5ms, mfu 20%\n": 0.3105,
    " iteration 10/ 100 | elapsed time per iteration (ms): 1234.5 | loss: 9\n": 1.2345,
    "iteration: 3 / 15 | elapsed_time_per_iteration_ms: 1.2K | loss: 9\n": 1.2,
    "Epoch 1 | iter 4 step 1 | loss train: 1.2 | iter time: 345.67 ms (step)\n": 0.34567,
    "Train: 0 [ 50/1251] Time: 0.345s, 742.03/s (0.356s, 719.10/s) Data: 0.01 (0.02)\n": 0.356,
    "Epoch: [0] [ 10/5005] img/s: 600 time: 0.4163 (0.5) data: 0.01 (0.1) max mem: 5100\n": 0.5,
    "Epoch: [0][ 10/5005]\tTime  0.345 ( 0.71)\tData  0.012 ( 0.21)\tLoss 6\n": 0.71,
    "Epoch(train) [1][50/100] lr: 1e-2 eta: 0:10:00 time: 0.3456 data_time: 0.01\n": 0.3456,
    " 10%|# | 10/100 [00:20<03:00, 2.00s/it]\r 50%|# | 50/100 [01:40<01:40, 2.00s/it]": 2.0,
    "2025-02-10 10:00:01,5 - INFO - step: 1\n2025-02-10 10:00:31,5 - INFO - step: 11\n": 3.0,
    "step 5: step_time: 310 ms\n": 0.31,
    "12.5 it/s\n": 0.08,
}
runner = CliRunner()


def imported(folder: Path, name: str, text: str | bytes, *, machine: str = "") -> list[RunRecord]:
    """Import a file by the command alone, and return all that the records then hold."""
    file, out = folder / name, folder / "records.jsonl"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    said = ["--machine", machine] if machine else []
    result = runner.invoke(app, ["runs", "import", str(file), "--out", str(out), *said])
    assert result.exit_code == 0, result.output
    return read_records(out)


def trace(folder: Path) -> Path:
    """Write a trace of six steps by PyTorch's own profiler."""
    model = torch.nn.Linear(64, 256)
    data = torch.utils.data.TensorDataset(torch.randn(512, 64))
    batches: torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]
    batches = torch.utils.data.DataLoader(data, batch_size=32)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=6, repeat=1)
    with torch.profiler.profile(profile_memory=True, schedule=schedule) as profiler:
        for (batch,) in batches:
            model(batch).sum().backward()
            profiler.step()
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    return folder / "trace.json.gz"


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [("a.log", DMON, "nvidia-smi"), ("b.csv", QUERY, "nvidia-smi"), ("c.txt", PIDSTAT, "pidstat"),
     ("d.csv", KERNELS, "nsys"), ("e.txt", RANGES, "nsys"), ("f.csv", "time_s,lr\n3,1\n", "csv"),
     ("trainer_state.json", "{}", "huggingface"), ("g.out", "step_time: 3 ms\n", "log"),
     ("h.json", '{"schemaVersion": 1, "traceEvents": []}', "trace"),
     ("events.out.tfevents.1.host", "", "tensorboard"),
     ("mlflow.db", "SQLite format 3\0", "mlflow"),
     ("i.jsonl", '{"schema_version": 1, "record_id": "a"}', "records")],
)  # fmt: skip
def test_the_kind_is_told_from_the_file(tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)
    assert kind_of(tmp_path / name) == kind


@pytest.mark.parametrize("text", LOGS, ids=lambda text: text[:30])
def test_a_log_says_its_step(tmp_path: Path, text: str) -> None:
    (run,) = imported(tmp_path, "train.log", text)
    assert run.time_kind == "step"
    assert run.time_s == pytest.approx(LOGS[text])


def test_what_watched_devices_says_use_memory_and_the_least_time(tmp_path: Path) -> None:
    """Two devices are their mean; a clock goes on over midnight; a dash is no reading."""
    (run,) = imported(tmp_path, "dmon.log", DMON)
    (series,) = run.series
    assert run.status == "censored"
    assert run.time_s == pytest.approx(3.0)
    assert series.channels["gpu_fraction"] == pytest.approx((0.85, 0.85))
    assert series.channels["gpu_memory_bytes"] == pytest.approx((31000 * 2**20,) * 2, rel=1e-5)


def test_what_watched_processes_is_their_sum(tmp_path: Path) -> None:
    (run,) = imported(tmp_path, "pid.log", PIDSTAT)
    assert run.configuration[0].vcpus == 16
    assert run.series[0].channels["cpu_cores"] == pytest.approx((1.5,))


def test_a_table_of_devices_names_them(tmp_path: Path) -> None:
    (run,) = imported(tmp_path, "smi.csv", QUERY)
    machines = run.configuration[0]
    assert (machines.accelerator, machines.accelerators) == ("NVIDIA A100-SXM4-80GB", 1)


def test_kernels_are_told_by_what_they_do_and_a_range_is_a_step(tmp_path: Path) -> None:
    (run,) = imported(tmp_path, "kernels.csv", KERNELS)
    assert run.status == "censored"
    assert run.time_s == pytest.approx(1.0)
    shares = {k: v for k, v in run.facts.items() if k.endswith("_kernel_fraction")}
    assert shares == pytest.approx(
        {"matrix_kernel_fraction": 0.6, "communication_kernel_fraction": 0.3,
         "other_kernel_fraction": 0.1}
    )  # fmt: skip
    (step,) = [one for one in imported(tmp_path, "ranges.txt", RANGES) if one.time_kind == "step"]
    assert step.time_s == pytest.approx(0.31)


def test_a_trace_of_the_profiler_says_step_input_and_memory(tmp_path: Path) -> None:
    file = trace(tmp_path)
    (run,) = read_runs_as("trace", file)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    steps = [e["dur"] for e in events if str(e.get("name")).startswith("ProfilerStep#")]
    assert run.time_kind == "step"
    assert run.time_s is not None
    assert min(steps) <= run.time_s * 1e6 <= max(steps)
    assert 0.0 < float(run.facts["input_wait_fraction"]) < 1.0
    assert float(run.facts["memory_peak_bytes"]) > 0


def test_kernels_that_overlap_keep_a_device_busy_once(tmp_path: Path) -> None:
    """Oracle: two kernels over one another and one apart cover 6 of 10 microseconds."""
    spans = [("gemm", 0, 4), ("gemm", 2, 3), ("ncclAllReduce", 8, 1)]
    kernels = [{"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": took,
                "args": {"device": 0}} for name, at, took in spans]  # fmt: skip
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 10}
    found = {"deviceProperties": [{"name": "NVIDIA H100"}], "traceEvents": [step, *kernels]}
    (run,) = imported(tmp_path, "t.json", json.dumps(found))
    assert run.facts["gpu_fraction"] == pytest.approx(0.6)
    assert run.facts["communication_kernel_fraction"] == pytest.approx(1 / 8)
    assert run.configuration[0].accelerator == "NVIDIA H100"


def test_a_table_of_wandb_is_read_as_it_is_exported(tmp_path: Path) -> None:
    table = ("Name,State,Notes,User,Created,Runtime,batch_size,loss\n"
             "brave-fox-1,finished,-,me,2024-01-01,3600,64,1.2\n"
             "sad-cat-2,crashed,-,me,2024-01-01,100,64,\n")  # fmt: skip
    runs = imported(tmp_path, "wandb_export.csv", table, machine="aws:g5.xlarge")
    assert [run.status for run in runs] == ["ok", "failed"]
    assert runs[0].time_s == 3600
    assert runs[0].job.facts["batch"] == 64
    assert "Notes" not in runs[0].job.facts


def test_what_was_imported_before_is_kept(tmp_path: Path) -> None:
    imported(tmp_path, "a.log", "step_time: 3 ms\n")
    imported(tmp_path, "b.log", "step_time: 4 ms\n")
    runs = imported(tmp_path, "a.log", "step_time: 5 ms\n")
    assert {run.record_id: run.time_s for run in runs} == {"log/a": 0.005, "log/b": 0.004}


def test_rows_without_a_name_are_told_apart_by_their_file(tmp_path: Path) -> None:
    for name, seconds in (("march.csv", 60), ("april.csv", 90), ("march.csv", 70)):
        runs = imported(tmp_path, name, f"program,machine,time_s\ncnn,g5.xlarge,{seconds}\n")
    assert {run.time_s for run in runs} == {70, 90}


@pytest.mark.parametrize(
    ("name", "text"),
    [("junk.bin", "\0\1\2"), ("empty.log", ""), ("words.txt", "hello\n"), ("t.json", "[{"),
     ("t.json", '{"traceEvents": [{"ph": "X", "ts": "a"}]}'), ("d.log", DMON[:90]),
     ("k.csv", KERNELS[:40]), ("x.json.gz", "no gzip"), ("t.json", '{"traceEvents": 3}')],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_and_what_to_do(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AdvisorError) as caught:
        read_runs_as(kind_of(tmp_path / name), tmp_path / name)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@given(st.sampled_from([DMON, QUERY, PIDSTAT, KERNELS, RANGES, *LOGS]), st.data())
def test_no_cut_and_no_garbled_line_breaks_a_reader(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text)))
    file = tmp_path_factory.mktemp("cut") / "run.txt"
    file.write_text(text[:at] + data.draw(st.text(max_size=8)) + text[at + 3 :], encoding="utf-8")
    with contextlib.suppress(AdvisorError):
        read_runs_as(kind_of(file), file)
