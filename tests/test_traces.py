"""Traces of spot nodes and of shared clusters: every form, and every way to be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import data
from advisor.records.importers.job_tables import left_out_note, read_cluster_trace
from advisor.records.traces import TraceError, read_spot_traces

INTERVALS = """kind,requested_nodes,cloud,trace,zone,instance,start_s,duration_s,available
availability,2,aws,a,z1,v100,100,50,2
availability,2,aws,a,z1,v100,150,10,0
availability,2,aws,a,z1,v100,160,40,1
availability,1,aws,b,z2,v100,0,30,1
"""


def file(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_intervals_become_traces_with_their_clock_at_0(tmp_path: Path) -> None:
    first, second = read_spot_traces(file(tmp_path, INTERVALS))
    assert (first.name, first.nodes, first.provider) == ("a/z1/v100/2", 2, "aws")
    assert first.start_s.tolist() == [0, 50, 60]
    assert first.available.tolist() == [2, 0, 1]
    assert first.end_s == 100.0
    assert second.end_s == 30.0


def test_events_counts_and_pools_say_the_same(tmp_path: Path) -> None:
    events = "0,add,n1\n0,add,n2\n20000,remove,n1\n40000,add,n3\n"
    counts = "t,available\n0,2\n20,1\n40,2\n"
    dates = "time,available\n2026-01-01 00:00:00,2\n2026-01-01 00:00:20,1\n2026-01-01 00:00:40,2\n"
    pools = ",Timestamp,A100_a,V100_b\n0,1000.0,2,8\n1,1020.0,1,8\n2,1040.0,2,9\n"
    forms = [read_spot_traces(file(tmp_path, t))[0] for t in (events, counts, dates, pools)]
    for trace in forms:
        assert trace.start_s.tolist() == [0, 20, 40]
        assert trace.available.tolist() == [2, 1, 2]
        assert trace.end_s == 60.0
    assert [t.name for t in read_spot_traces(file(tmp_path, pools))] == ["A100_a", "V100_b"]


def test_of_equal_times_the_last_count_holds_and_units_are_the_callers(tmp_path: Path) -> None:
    path = file(tmp_path, "0,0\n1,0\n1,9\n3,9\n")
    (trace,) = read_spot_traces(path, unit_s=3600.0)
    assert trace.start_s.tolist() == [0, 3600, 10800]
    assert trace.available.tolist() == [0, 9, 9]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (INTERVALS.replace("150,10", "155,10"), "line 3: gap of 5 s"),
        (INTERVALS.replace("160,40", "155,40"), "line 4: overlap"),
        (INTERVALS.replace("50,2\n", "50,0\n").replace("40,1", "40,0"), "no node at any time"),
        (INTERVALS.replace("150,10", "x,10"), "line 3: no number in column 'start_s'"),
        ("t,available\n0,1\n10,2\n5,1\n", "line 4 of trace 'trace': time goes back by 5 s"),
        ("t,available\n0,1\n", "single time"),
        ("t,available\n0,0\n5,0\n", "no node"),
        ("t,available\nyesterday,1\nnow,1\n", "'yesterday' is neither a number nor a date"),
        ("0,add,n1\n5,remove,n2\n", "'remove' of node 'n2', which is not there"),
        ("0,add,n1\n5,add,n1\n", "'add' of node 'n1', which is there"),
        ("a,b\n1,2\n", "no known form"),
        ("t,available\n0\n", "line 2: not 2 columns"),
        ("1,2,3,4\n", "no header and 4 columns"),
        ("", "no rows"),
    ],
)
def test_a_trace_without_sense_is_one_clear_error(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(TraceError, match=match) as refused:
        read_spot_traces(file(tmp_path, text))
    assert refused.value.exit_code == 2


def test_a_file_that_is_not_there_or_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x81")
    for name in ("bytes", "nowhere"):
        for read in (read_spot_traces, read_cluster_trace):
            with pytest.raises(TraceError, match="cannot read"):
                read(tmp_path / name)


@given(
    counts=st.lists(st.integers(0, 50), min_size=2, max_size=30).filter(any),
    steps=st.lists(st.integers(1, 10_000), min_size=30, max_size=30),
)
def test_counts_survive_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], steps: list[int]
) -> None:
    times = np.concatenate([[0], np.cumsum(steps[: len(counts) - 1])])
    text = "t,available\n" + "".join(f"{t},{c}\n" for t, c in zip(times, counts, strict=True))
    (trace,) = read_spot_traces(file(tmp_path_factory.mktemp("t"), text))
    assert trace.available.tolist() == counts
    assert trace.start_s.tolist() == times.tolist()


@pytest.mark.skipif(data.shared() is None, reason="the public traces are not here")
def test_every_public_trace_reads_or_says_why_not() -> None:
    shared = data.shared()
    assert shared is not None
    folder = shared / "data/measurements/spot"
    assert len(read_spot_traces(folder / "skypilot_spot_intervals.csv")) >= 10
    assert read_spot_traces(folder / "bamboo_aws_events.csv")[0].nodes == 32
    with pytest.raises(TraceError, match="time goes back"):
        read_spot_traces(folder / "bamboo_gcloud_availability.csv")


SACCT = """JobID|Submit|Start|End|ElapsedRaw|AllocTRES|State
10|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T01:10:00|3600|cpu=8,gres/gpu=4,mem=64G|COMPLETED
10.batch|2026-01-01T00:10:00|2026-01-01T00:10:00|2026-01-01T01:10:00|3600|cpu=8|COMPLETED
11_2|2026-01-01T00:05:00|2026-01-01T00:05:00|2026-01-01T00:06:00|60|gres/gpu:a100=2,gres/gpu:v100=1|FAILED
12|2026-01-01T00:06:00|Unknown|Unknown|0||PENDING
13|2026-01-01T00:07:00|2026-01-01T00:07:00|2026-01-01T00:09:00|120|cpu=4|COMPLETED
14|2026-01-01T00:08:00|None|2026-01-01T00:09:00|0|gres/gpu=1|CANCELLED by 0
15|2026-01-01T00:09:00|2026-01-01T00:10:00|Unknown|99|gres/gpu=8|RUNNING
"""


def test_sacct_gives_jobs_with_gpus_and_their_waits(tmp_path: Path) -> None:
    trace = read_cluster_trace(file(tmp_path, SACCT, "sacct.txt"))
    assert trace.jobs.submit_s.tolist() == [0, 300]
    assert trace.jobs.devices.tolist() == [4, 3]
    assert trace.jobs.duration_s.tolist() == [3600, 60]
    assert trace.waited_s.tolist() == [600, 0]
    assert trace.left_out == {"without a start or an end": 2, "without a device": 1,
                              "that have not ended": 1}  # fmt: skip
    assert "1 without a device" in left_out_note(trace.left_out)
    assert left_out_note({}) == ""


def test_sacct_without_raw_seconds_reads_elapsed_and_gres(tmp_path: Path) -> None:
    text = (
        "JobID|Submit|Start|Elapsed|ReqGRES\n"
        "1|2026-01-01T00:00:00|2026-01-01T00:00:00|1-02:03:04|gpu:tesla:2\n"
        "2|2026-01-01T00:00:00|2026-01-01T00:00:00|03:04|gpu:1\n"
    )
    trace = read_cluster_trace(file(tmp_path, text))
    assert trace.jobs.duration_s.tolist() == [((24 + 2) * 60 + 3) * 60 + 4, 184]
    assert trace.jobs.devices.tolist() == [2, 1]


def kubernetes_job(gpus: str | None, start: str | None, end: str | None) -> dict[str, object]:
    limits = {} if gpus is None else {"nvidia.com/gpu": gpus}
    status = {"startTime": start, "completionTime": end}
    return {
        "kind": "Job",
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "parallelism": 2,
            "template": {"spec": {"containers": [{"resources": {"limits": limits}}]}},
        },
        "status": {k: v for k, v in status.items() if v},
    }


def test_kubernetes_jobs_and_pods(tmp_path: Path) -> None:
    items = [
        kubernetes_job("4", "2026-01-01T00:01:00Z", "2026-01-01T01:01:00Z"),
        kubernetes_job(None, "2026-01-01T00:01:00Z", "2026-01-01T01:01:00Z"),
        kubernetes_job("4", "2026-01-01T00:01:00Z", None),
        {
            "kind": "Pod",
            "metadata": {"creationTimestamp": "2026-01-01T00:00:30Z"},
            "spec": {"containers": [{"resources": {"requests": {"amd.com/gpu": "1"}}}, {}]},
            "status": {
                "startTime": "2026-01-01T00:02:30Z",
                "containerStatuses": [
                    {"state": {"terminated": {"finishedAt": "2026-01-01T00:12:30Z"}}}
                ],
            },
        },
        {"kind": "Service", "metadata": {"creationTimestamp": "2026-01-01T00:00:30Z"}, "spec": {}},
    ]
    trace = read_cluster_trace(file(tmp_path, json.dumps({"items": items}), "jobs.json"))
    assert trace.jobs.devices.tolist() == [8, 1]
    assert trace.jobs.duration_s.tolist() == [3600, 600]
    assert trace.waited_s.tolist() == [60, 120]
    assert sum(trace.left_out.values()) == 3


def test_plain_tables_of_tiresias_and_philly(tmp_path: Path) -> None:
    tiresias = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,2,30,1,vgg,50,9\n6,1,0,1,vgg,9.5,9\n"  # noqa: E501
    philly = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66,c\n2017-10-09 07:00:55,0,1,0,c\n"  # noqa: E501
    trace = read_cluster_trace(file(tmp_path, tiresias))
    assert trace.jobs.submit_s.tolist() == [0, 30]
    assert trace.jobs.devices.tolist() == [1, 2]
    assert np.isnan(trace.waited_s).all()
    other = read_cluster_trace(file(tmp_path, philly))
    assert other.jobs.duration_s.tolist() == [66]
    assert other.left_out == {"that never ran": 1}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("JobID|Submit|State\n1|x|y\n", "columns Start, .* are missing"),
        (
            SACCT.replace("2026-01-01T00:10:00|2026", "tomorrow|2026"),
            "line 2: cannot read 'tomorrow'",
        ),
        ("{", "is not JSON"),
        ("submit_time,num_gpu,duration\n5,1,-3\n", "line 2: ends 3 s before it starts"),
        (
            "JobID|Submit|Start|ElapsedRaw|AllocTRES\n"
            "7|2026-01-01T10:00:00|2026-01-01T09:00:00|60|gres/gpu=1\n",
            "line 2: starts 3600 s before it was submitted",
        ),
        ('{"items": 3}', "not a list of Kubernetes objects"),
        ('{"items": [{"kind": "Job"}]}', "item 0: no Kubernetes job"),
        ("a,b\n1,2\n", "no known form of jobs"),
        ("submit_time,num_gpu,duration\n0,x,3\n", "line 2: cannot read 'x' as a number"),
        ("submit_time,num_gpu,duration\n0,1\n", "line 2: fewer columns"),
        ("submit_time,num_gpu,duration\n0,0,3\n", "no job that ran on devices: 1 without"),
        ("", "no known form of jobs"),
    ],
)
def test_a_job_table_without_sense_is_one_clear_error(
    tmp_path: Path, text: str, match: str
) -> None:
    with pytest.raises(TraceError, match=match) as refused:
        read_cluster_trace(file(tmp_path, text))
    assert refused.value.exit_code == 2


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = file(tmp_path_factory.mktemp("any"), text.encode("utf-8", "ignore").decode())
    for read in (read_spot_traces, read_cluster_trace):
        try:
            read(path)
        except TraceError as error:
            assert str(error)  # noqa: PT017
