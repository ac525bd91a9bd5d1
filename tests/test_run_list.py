"""Listing runs: one bad run costs no other, and what ended is not read twice."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli.runs import table
from advisor.collectors.derive import store
from advisor.collectors.derive.run_list import INDEX_FILE, UNREADABLE, RunLine, run_lines
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.record_files import PROFILER_FILE, machine, mark
from advisor.collectors.hooks import format as fmt

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="recordings are of Linux")

GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"


def golden(root: Path, name: str) -> Path:
    """Copy a run that ended long ago."""
    return Path(shutil.copytree(GOLDEN, root / name))


def framed(kind: int, content: str) -> bytes:
    """Return a record of any text."""
    return fmt.framed(kind, content.encode(errors="surrogatepass"))


HEADER = {"schema_version": 1, "pid": 2**22 - 1, "start_ticks": 5, "t_ns": 1, "machine": machine(),
          "started_at": "2026-11-22T00:00:00+00:00", "command": ["x"], "host": {}}  # fmt: skip
GOOD_HOST = json.loads(
    '{"cpu_model": "c", "logical_cpus": 1, "physical_cpus": 1, "cpu_limit": 1.0, "gpus": [], '
    '"memory_bytes": 1, "memory_limit_bytes": 1, "system": "s", "python_version": "3", '
    '"torch_version": null}'
)
DEEP = "[" * 100_000
NESTED = "[" * 900 + "]" * 900
BAD = {
    "deep": framed(fmt.HEADER, DEEP),
    "deep-host": framed(fmt.HEADER, json.dumps(HEADER)[:-1] + f', "host": {NESTED}}}'),
    "no-header": b"nonsense" * 100,
    "empty": b"",
    "status": framed(fmt.HEADER, json.dumps({**HEADER, "host": GOOD_HOST}))
    + framed(fmt.END, json.dumps({"status": {"a": [1]}, "t_ns": 5})),
    "command": framed(fmt.HEADER, json.dumps({**HEADER, "host": GOOD_HOST, "command": [1, {}]})),
    "command-number": framed(fmt.HEADER, json.dumps({**HEADER, "host": GOOD_HOST, "command": 7})),
    "started": framed(fmt.HEADER, json.dumps({**HEADER, "host": GOOD_HOST, "started_at": [2]})),
    "version": framed(fmt.HEADER, json.dumps({**HEADER, "schema_version": 99})),
    "number": framed(fmt.HEADER, json.dumps({**HEADER, "t_ns": 10**4000})),
    "surrogate": framed(fmt.HEADER, '{"schema_version": "\\ud800", "t_ns": "\ud800"}'),
}


def test_every_bad_run_is_one_line_and_the_others_are_listed(tmp_path: Path) -> None:
    for name, content in BAD.items():
        (tmp_path / f"0-{name}").mkdir()
        (tmp_path / f"0-{name}" / PROFILER_FILE).write_bytes(content)
    (tmp_path / "1-folder" / PROFILER_FILE).mkdir(parents=True)
    (tmp_path / "1-link").mkdir()
    (tmp_path / "1-link" / PROFILER_FILE).symlink_to(tmp_path / "nowhere")
    good = golden(tmp_path, "2-good")
    (tmp_path / "a file").write_text("")
    lines = run_lines(store.list_runs(tmp_path))
    assert [one.status for one in lines if not one.status.startswith(UNREADABLE)] == ["finished"]
    assert lines[-1].run == good.name
    assert len(lines) == len(BAD) + 3
    texts = table(lines, 200)
    assert len(texts) == len(lines)
    assert all(text.isprintable() and len(text) <= 200 for text in texts)
    json.dumps([one.status for one in lines])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


OF_HEADERS = st.dictionaries(st.sampled_from([*HEADER, "options"]), VALUES, max_size=3)
OF_ENDS = st.dictionaries(st.sampled_from(["status", "stop_reason", "exit_code", "t_ns"]), VALUES)
OF_LINES = st.dictionaries(
    st.sampled_from(["run", "status", "step_s", "command", "duration_s"]), VALUES
)


@given(OF_HEADERS, OF_ENDS)
def test_any_header_and_end_make_a_line(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], end: dict[str, Any]
) -> None:
    run = tmp_path_factory.mktemp("runs") / "run"
    run.mkdir()
    header = {**HEADER, "host": GOOD_HOST, **changes}
    (run / PROFILER_FILE).write_bytes(
        framed(fmt.HEADER, json.dumps(header)) + framed(fmt.END, json.dumps(end))
    )
    (line,) = run_lines([run])
    (text,) = table([line], 10_000)
    assert text.isprintable()
    assert run_lines([run]) == [line]  # whether from the index or derived again


def test_an_ended_run_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [golden(tmp_path, f"run-{number}") for number in range(3)]
    before = run_lines(runs)
    read: list[str] = []
    reading = store.read_recording

    def counted(path: Path) -> Any:
        read.append(path.name)
        return reading(path)

    replace_everywhere(monkeypatch, store, "read_recording", counted)
    assert run_lines(runs) == before
    assert read == []
    with (runs[1] / PROFILER_FILE).open("ab") as log:  # e.g. closed by `runs recover`
        log.write(b"\0")
    assert run_lines(runs) == before
    assert read == ["run-1"]


def test_a_run_that_goes_on_is_read_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    header = {**HEADER, "host": GOOD_HOST, **mark()}
    (run / PROFILER_FILE).write_bytes(framed(fmt.HEADER, json.dumps(header)))
    assert [one.status for one in run_lines([run])] == ["running"]
    dead = {**header, "pid": 2**22 - 1}
    (run / PROFILER_FILE).write_bytes(framed(fmt.HEADER, json.dumps(dead)))
    assert [one.status for one in run_lines([run])] == ["killed"]
    replace_everywhere(monkeypatch, store, "read_recording", None)
    assert [one.status for one in run_lines([run])] == ["killed"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", DEEP.encode(), b'{"made_by": [1, 2], "runs": {}}', b"\xff",
     b'{"made_by": null, "runs": 3}'],
)  # fmt: skip
def test_a_damaged_index_is_made_again(tmp_path: Path, content: bytes) -> None:
    runs = [golden(tmp_path, "run")]
    lines = run_lines(runs)
    good = (tmp_path / INDEX_FILE).read_bytes()
    (tmp_path / INDEX_FILE).write_bytes(content)
    assert run_lines(runs) == lines
    assert (tmp_path / INDEX_FILE).read_bytes() == good


@given(
    st.dictionaries(st.sampled_from(["run", "status", "step_s", "command", "duration_s"]), VALUES)
)
def test_an_index_of_other_types_is_not_believed(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("runs")
    runs = [golden(root, "run")]
    run_lines(runs)
    content = json.loads((root / INDEX_FILE).read_text())
    content["runs"]["run"] |= changes
    (root / INDEX_FILE).write_text(json.dumps(content))
    (line,) = run_lines(runs)
    assert isinstance(line, RunLine)
    (text,) = table([line], 10_000)
    assert text.isprintable()


def test_runs_are_listed_where_no_index_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("advisor.collectors.derive.run_list.atomic.write_text", full)
    assert [one.status for one in run_lines([golden(tmp_path, "run")])] == ["finished"]
    assert not (tmp_path / INDEX_FILE).exists()


def test_a_folder_that_cannot_be_looked_into_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot look into"):
        store.list_runs(tmp_path / "file")
    assert store.list_runs(tmp_path / "missing") == []
