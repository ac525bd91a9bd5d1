"""Records survive: cut lines, changed bytes, two writers in turn."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors import RecordingError
from advisor.records.collected import Journal, from_line, pack, to_line, unpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ROWS = st.dictionaries(st.text().filter(lambda key: key != "crc32"), VALUES, min_size=1)


@given(ROWS)
def test_a_record_comes_back_as_it_was(row: dict[str, object]) -> None:
    line = to_line(row)
    assert line.count("\n") == 1
    assert from_line(line) == row


@given(ROWS, st.data())
def test_a_cut_line_is_never_taken_for_a_record(
    row: dict[str, object], data: st.DataObject
) -> None:
    line = to_line(row).rstrip("\n")
    assert from_line(line[: data.draw(st.integers(0, len(line) - 1))]) is None


def test_a_changed_number_fails_its_checksum() -> None:
    line = to_line({"time_s": 1.25})
    assert from_line(line.replace("1.25", "1.26")) is None


def test_what_is_not_finite_is_refused_when_written() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        to_line({"time_s": float("nan")})


def test_a_cut_line_does_not_swallow_the_next_record(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "runs.jsonl")
    journal.append({"a": 1})
    with journal.path.open("a") as raw:
        raw.write(to_line({"a": 2})[:7])
    journal.append({"a": 3})
    assert [row["a"] for row in journal.rows()] == [1, 3]
    assert journal.damaged() == 1


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    assert list(Journal(tmp_path / "none.jsonl").rows()) == []


def test_packing_is_deterministic_and_complete(tmp_path: Path) -> None:
    rows = [{"key": str(i), "values": [i / 7] * 20} for i in range(50)]
    first, second = tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl.gz"
    assert pack(rows, first) == pack(rows, second) == 50
    assert first.read_bytes() == second.read_bytes()
    assert list(unpack(first)) == rows


def test_a_changed_dataset_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    text = to_line({"a": 1}) + to_line({"a": 2}).replace("2", "3", 1)
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(RecordingError, match=":2:"):
        list(unpack(path))


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"{}" * 100, mtime=0)[:-12]])
def test_an_unreadable_dataset_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(RecordingError):
        list(unpack(path))
