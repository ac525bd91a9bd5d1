"""The file format: torn, flipped and random bytes cost the records they hit, never more."""

from __future__ import annotations

import json
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.collectors.derive.read import read_events
from advisor.collectors.derive.store import latest_run, list_runs, new_run, read_recording
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.events import ticks_in
from advisor.collectors.format.record_files import PROFILER_FILE, Appender, Tail, parse
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.writer import HOLD_NS, Writer

RECORDS = st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=60)), max_size=20)


def packed(records: list[tuple[int, bytes]]) -> bytes:
    return b"".join(fmt.framed(kind, payload) for kind, payload in records)


def parsed(data: bytes) -> list[tuple[int, bytes]]:
    return [(kind, payload) for kind, payload, _ in parse(data)]


@given(RECORDS)
def test_what_is_written_is_read(records: list[tuple[int, bytes]]) -> None:
    assert parsed(packed(records)) == records


@given(RECORDS, st.data())
def test_a_torn_tail_costs_the_last_record_only(
    records: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    whole = packed(records)
    cut = data.draw(st.integers(0, len(whole)))
    kept = parsed(whole[:cut])
    assert kept == records[: len(kept)]
    assert len(packed(records[: len(kept) + 1])) > cut or len(kept) == len(records)


@given(RECORDS.filter(bool), st.data())
def test_a_flipped_bit_costs_the_record_it_hits(
    records: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    whole = bytearray(packed(records))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << (bit % 8)
    end = 0
    for hit, record in enumerate(records):  # noqa: B007 - the record that the bit lies in
        end += len(fmt.framed(*record))
        if bit // 8 < end:
            break
    # The unused byte of a frame's head is not covered: a flip there costs nothing.
    assert parsed(bytes(whole)) in (records[:hit] + records[hit + 1 :], records)


@given(st.binary(max_size=400))
def test_noise_is_no_record(noise: bytes) -> None:
    assert parsed(noise) == []


@given(RECORDS, st.binary(max_size=40))
def test_a_record_after_noise_is_found(records: list[tuple[int, bytes]], noise: bytes) -> None:
    assert parsed(packed(records) + noise + packed(records)) == records + records


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), st.data())
def test_a_growing_file_is_followed_record_by_record(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("tail") / "growing.bin"
    whole = packed([(fmt.STEP, payload) for payload in payloads])
    tail, seen, at = Tail(path), [], 0
    while at < len(whole):
        at = data.draw(st.integers(at + 1, len(whole)))
        path.write_bytes(whole[:at])
        seen += [payload for _, payload in tail.read()]
    assert seen == payloads


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as a profiler and one script write it, small."""
    run = new_run("fuzzed", tmp_path_factory.mktemp("runs"))
    log = Appender(run / PROFILER_FILE)
    host = {
        "cpu_model": "x", "logical_cpus": 2, "physical_cpus": 2, "cpu_limit": 2.0,
        "memory_bytes": 1, "memory_limit_bytes": 1, "gpus": [], "system": "Linux",
        "python_version": "3.11.7", "torch_version": None, "benchmark": None,
    }  # fmt: skip
    header = {
        "schema_version": 1, "pid": 1, "start_ticks": 1, "t_ns": 0, "command": ["x"],
        "started_at": "2026-11-21T00:00:00+00:00", "host": host, "options": {},
    }  # fmt: skip
    log.write_json(fmt.HEADER, header)
    for tick in range(20):
        values = [tick * 10**8, 1, tick * 10**7, 0, 2**20, -1, 0, 0, 0, 0, 0, -1.0, 0, 0]
        values += [-1.0, -1, -1.0, -1.0, -1.0, -1.0, 0, 0, 0]
        log.write(fmt.READING, fmt.READING_PAYLOAD.pack(*values))
    log.write_json(fmt.END, {"status": "finished", "stop_reason": "x", "exit_code": 0, "t_ns": 9})
    log.close()
    script = Appender(run / "ev-5-6.bin")
    script.write_json(fmt.HEADER, {"schema_version": 1, "pid": 5, "start_ticks": 6})
    script.write_json(fmt.FACT, {"fact": "loader", "loader": 0, "batch": 4, "workers": 0})
    for tick in range(1, 40):
        step = (tick * 10**8, 0, tick, fmt.CLOCK_OPTIMIZER, fmt.FLAG_COMPLETES, 0, 1, 1, 5, 4, 0)
        script.write(fmt.STEP, fmt.STEP_PAYLOAD.pack(*step))
    counts = (0, 1, 39, 39, 156, 10, 10, 0, 0, 0)
    script.write(fmt.LOADER, fmt.LOADER_PAYLOAD.pack(4 * 10**9, *counts))
    script.close()
    return run


def test_the_run_to_fuzz_is_sound(good_run: Path) -> None:
    seen = read_recording(good_run)
    assert seen.step_time is not None
    assert seen.step_time.corrected_s == pytest.approx(0.1)
    assert (seen.status, seen.step_samples, len(seen.readings)) == ("finished", 4.0, 20)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_run_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, good_run: Path, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(good_run, run)
    path = run / data.draw(st.sampled_from([PROFILER_FILE, "ev-5-6.bin"]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(RecordingError):
        assert read_recording(run).path == run


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_records_with_true_checksums_and_false_contents_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, good_run: Path, data: st.DataObject
) -> None:
    """Whoever shares runs must not be able to crash the reader with them."""
    run = tmp_path_factory.mktemp("forged") / "run"
    shutil.copytree(good_run, run)
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=6,
    )
    kind = data.draw(st.sampled_from([fmt.HEADER, fmt.FACT, fmt.END]))
    names = ["fact", "host", "loader", "work", "deep_step", "torch", "options", "t_ns", "status"]
    forged = data.draw(st.dictionaries(st.sampled_from(names), json_values, max_size=4))
    path = run / data.draw(st.sampled_from([PROFILER_FILE, "ev-5-6.bin"]))
    with path.open("ab") as file:
        file.write(fmt.framed(kind, json.dumps(forged).encode()))
    with suppress(RecordingError):
        read_recording(run)


def test_missing_empty_and_later_runs_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no recording at"):
        read_recording(tmp_path / "nothing")
    with pytest.raises(RecordingError, match="no run in"):
        latest_run(tmp_path)
    run = new_run("empty", tmp_path)
    assert list_runs(tmp_path) == [run]
    with pytest.raises(RecordingError, match="is empty"):
        read_recording(run)
    (run / PROFILER_FILE).write_bytes(b"nonsense" * 10)
    with pytest.raises(RecordingError, match="no readable beginning"):
        read_recording(run)
    later = json.dumps({"schema_version": fmt.SCHEMA_VERSION + 1}).encode()
    (run / PROFILER_FILE).write_bytes(fmt.framed(fmt.HEADER, later))
    with pytest.raises(RecordingError, match="schema version"):
        read_recording(run)


def test_fields_and_kinds_of_later_versions_are_passed_over(
    tmp_path: Path, good_run: Path
) -> None:
    """Within a schema version payloads may grow at the end and new kinds may appear."""
    run = tmp_path / "run"
    shutil.copytree(good_run, run)
    path = run / "ev-5-6.bin"
    grown = b""
    for kind, payload, _ in parse(path.read_bytes()):
        more = struct.pack("<Q", 7) if kind in (fmt.STEP, fmt.LOADER) else b""
        grown += fmt.framed(kind, payload + more) + fmt.framed(200, b"from the future")
    path.write_bytes(grown)
    now, then = read_recording(run), read_recording(good_run)
    assert (now.step_time, now.loading) == (then.step_time, then.loading)


def test_steps_and_facts_mix_in_order_however_many_share_a_record(tmp_path: Path) -> None:
    """Bursts of quick steps, and slow ones in between: all come back, each once, in order."""
    writer = Writer(str(tmp_path))
    writer.hello()
    now_ns, told = 0, []
    for number in range(3000):
        now_ns += HOLD_NS if number % 50 > 40 else 300_000
        told.append((now_ns, 0, number, 2, 8, 0, 1, 1, 5, 4, 0))
        writer.step(*told[-1])
        if number % 100 == 0:
            writer.fact("filler", text="x" * 1000, number=number)
    writer.close()
    (path,) = tmp_path.glob("ev-*.bin")
    records = parsed(path.read_bytes())
    assert path.stat().st_size == sum(len(fmt.framed(*record)) for record in records)
    steps, counted = [], 0
    for kind, payload in records:
        if kind == fmt.STEP:
            steps.append(fmt.STEP_PAYLOAD.unpack(payload))
        elif kind == fmt.STEPS:
            steps += ticks_in(fmt.STEPS, payload)
        elif kind == fmt.FACT:  # what was kept back is written before it
            assert len(steps) == json.loads(payload)["number"] + 1
            counted += 1
    assert (steps, counted, writer.lost) == (told, 30, 0)
    assert sum(kind in (fmt.STEP, fmt.STEPS) for kind, _ in records) < len(told) / 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 30_000_000), min_size=1, max_size=200))
def test_no_step_is_kept_back_for_longer_than_told(
    tmp_path_factory: pytest.TempPathFactory, pauses_ns: list[int]
) -> None:
    """What a killed script loses: the steps since the last record, which is no older than that."""
    writer = Writer(str(tmp_path_factory.mktemp("held")))
    now_ns = 10**9
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        writer.step(now_ns, 0, 1, 2, 8, 0, 1, 1, 5, 4, 0)
        (path,) = Path(writer.folder).glob("ev-*.bin")
        steps = read_events(path).steps
        assert now_ns - steps.last_ns < HOLD_NS
    writer.close()


def test_fields_of_later_versions_in_records_of_several_steps_are_passed_over() -> None:
    told = [(10**9 + number, 0, number, 2, 8, 0, 1, 1, 5, 4, 0) for number in range(5)]
    grown = b"".join(fmt.STEP_PAYLOAD.pack(*values) + b"later" for values in told)
    head = fmt.STEPS_HEAD.pack(fmt.STEP_PAYLOAD.size + 5)
    assert ticks_in(fmt.STEPS, head + grown) == told
    assert ticks_in(fmt.STEPS, fmt.STEPS_HEAD.pack(7) + grown) == []
