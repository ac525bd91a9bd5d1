"""Records survive their files, and a bad row is refused with file, row and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import RunError
from advisor.records import (
    CHANNELS,
    AnchorRun,
    Instances,
    JobFacts,
    ResourceSeries,
    RunRecord,
    from_row,
    read_records,
    to_line,
    write_records,
)

positive = st.floats(1e-6, 1e9)
names = st.text(min_size=1, max_size=8)
facts = st.dictionaries(names, st.floats(-1e12, 1e12) | st.text(max_size=5), max_size=3)


@st.composite
def series(draw: st.DrawFn) -> ResourceSeries:
    length = draw(st.integers(0, 4))
    values = st.lists(st.floats(0, 1e12), min_size=length, max_size=length).map(tuple)
    return ResourceSeries(
        role=draw(st.sampled_from(["all", "master", "worker_mean"])),
        interval_s=draw(positive),
        channels=draw(st.dictionaries(st.sampled_from(sorted(CHANNELS)), values, max_size=3)),
    )


machines = st.builds(
    Instances, provider=names, instance_type=names, count=st.integers(1, 64),
    is_spot=st.booleans(),
    vcpus=st.none() | positive, price_usd_per_h=st.none() | positive, facts=facts,
)  # fmt: skip
anchors = st.builds(
    AnchorRun, machines=machines, time_s=positive, facts=facts,
    series=st.lists(series(), max_size=2).map(tuple),
)  # fmt: skip
records = st.builds(
    RunRecord, record_id=names, source=names,
    job=st.builds(JobFacts, job_id=names, family=names, facts=facts),
    configuration=st.lists(machines, min_size=1, max_size=2).map(tuple), layout=facts,
    time_s=positive, time_kind=st.sampled_from(["step", "epoch"]), cost_usd=st.none() | positive,
    status=st.sampled_from(["ok", "censored", "failed"]), anchor=st.none() | anchors,
    series=st.lists(series(), max_size=1).map(tuple),
)  # fmt: skip


@given(records)
def test_a_record_survives_its_line(record: RunRecord) -> None:
    assert from_row(json.loads(to_line(record))) == record


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_records_survive_their_file(tmp_path: Path, name: str) -> None:
    written = [run(record_id=str(i)) for i in range(3)]
    write_records(tmp_path / name, written)
    assert read_records(tmp_path / name) == written
    assert [p.name for p in tmp_path.iterdir()] == [name]


def run(**changes: object) -> RunRecord:
    values: dict[str, object] = {
        "record_id": "a",
        "source": "test",
        "job": JobFacts(job_id="mlp-8", family="mlp"),
        "configuration": (Instances(provider="p", instance_type="t", price_usd_per_h=2.0),),
        "time_s": 100.0,
        "time_kind": "job",
    }
    return RunRecord(**(values | changes))  # type: ignore[arg-type]


BAD: list[tuple[dict[str, object], str]] = [
    ({"time_s": None}, "time_s"),
    ({"time_s": -1.0}, "time_s"),
    ({"time_s": "3"}, "time_s"),
    ({"time_kind": "week"}, "time_kind"),
    ({"status": "fine"}, "status"),
    ({"cost_usd": 200.0}, "cost_usd"),  # a hundred seconds at 2 USD/h cost 0.06 USD
    ({"configuration": []}, "configuration"),
    ({"configuration": [{"provider": "p", "instance_type": "t", "count": 0}]}, "count"),
    ({"configuration": [{"provider": "p", "instance_type": "t", "count": 1.5}]}, "count"),
    ({"configuration": [{"provider": "p", "instance_type": "t", "accelerators": 2}]}, "accelerat"),
    ({"configuration": [{"provider": "p"}]}, r"configuration\[0\].instance_type is missing"),
    ({"job": {"job_id": "a", "family": ""}}, "job: family"),
    ({"colour": 3}, "unknown fields: colour"),
    ({"schema_version": 99}, "schema_version"),
    ({"series": [{"interval_s": 0, "channels": {}}]}, r"series\[0\]: interval_s"),
    ({"series": [{"interval_s": 1, "channels": {"smell": [1]}}]}, "smell"),
    ({"series": [{"interval_s": 1, "channels": {"cpu_cores": [1], "memory_bytes": []}}]}, "chann"),
]


@pytest.mark.parametrize(("change", "column"), BAD)
def test_a_bad_row_is_refused_with_file_row_and_column(
    tmp_path: Path, change: dict[str, object], column: str
) -> None:
    path = tmp_path / "runs.jsonl"
    good = to_line(run(record_id="good"))
    path.write_text(good + json.dumps({**json.loads(to_line(run())), **change}) + "\n")
    with pytest.raises(RunError, match=rf"runs.jsonl: row 2: .*{column}"):
        read_records(path)


@pytest.mark.parametrize("text", ['{"record_id": "a', "[1]", '{"time_s": Infinity}', "\x00"])
def test_a_torn_row_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(RunError, match="row 1"):
        read_records(path)


def test_a_record_id_stands_once(tmp_path: Path) -> None:
    write_records(tmp_path / "runs.jsonl", [run(), run()])
    with pytest.raises(RunError, match="row 2: record_id"):
        read_records(tmp_path / "runs.jsonl")


def test_a_file_that_is_not_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl.gz").write_text("{}")
    with pytest.raises(RunError, match="cannot read"):
        read_records(tmp_path / "runs.jsonl.gz")


def test_a_failed_run_needs_no_time() -> None:
    assert run(time_s=None, status="oom").time_s is None


def test_the_price_of_a_configuration_is_unknown_where_one_price_is() -> None:
    known = Instances(provider="p", instance_type="t", count=3, price_usd_per_h=2.0)
    unknown = Instances(provider="p", instance_type="u")
    assert run(configuration=(known,)).price_usd_per_h == 6.0
    assert run(configuration=(known, unknown)).price_usd_per_h is None
    assert run(configuration=(known, unknown)).instance_key == "t+u"
