"""Touched memory: windows of a known program, who comes and goes, and a real child."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import record
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.errors import RecordingError
from advisor.collectors.format.recording import TouchedReading, read_touched
from advisor.collectors.watch.touched import LENGTHS_NS, TouchedMemory, touched_and_resident

MIB = 2**20
HOT, COLD = 16 * MIB, 48 * MIB
SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


def made_up(proc: Path, pid: int, touched: int, resident: int) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "clear_refs").touch()
    (folder / "statm").write_text(f"9999 {resident // 4} 0 0 0 0 0\n")
    rows = f"0-1 rw-p 0 00:00 0 [heap]\nRss: {resident} kB\nReferenced: {touched} kB\n"
    (folder / "smaps").write_text(rows)


def read(payload: bytes | None) -> TouchedReading:
    assert payload is not None
    found = read_touched(payload, 0)
    assert found is not None
    return found


def test_windows_take_turns_and_begin_anew_with_the_first_step(tmp_path: Path) -> None:
    clock = Clock()
    memory = TouchedMemory(tmp_path, clock=clock)
    made_up(tmp_path, 7, 100, 300)
    assert memory.look([7]) is None  # begins
    for length in (*LENGTHS_NS, LENGTHS_NS[0]):
        clock.now_ns += length - 1
        assert memory.look([7]) is None
        clock.now_ns += 1
        seen = read(memory.look([7]))
        assert seen.window_s == length / 1e9
        assert (seen.touched_bytes, seen.resident_bytes) == (100 * 1024, 300 * 1024)
    assert (tmp_path / "7" / "clear_refs").read_text() == "1"
    clock.now_ns += SECOND_NS // 2
    memory.look([7], is_running=True)
    clock.now_ns += LENGTHS_NS[0]
    assert read(memory.look([7], is_running=True)).window_s == LENGTHS_NS[0] / 1e9


def mapping(perms: str, inode: int, resident: int, touched: int) -> str:
    head = f"7f0000000000-7f0000100000 {perms} 00000000 fd:00 {inode:<20} /some file.so"
    return f"{head}\nSize: 1024 kB\nRss: {resident} kB\nReferenced: {touched} kB\nVmFlags: rd\n"


@given(
    maps=st.lists(
        st.tuples(
            st.sampled_from(["r--p", "r-xp", "rw-p", "rw-s"]), st.integers(0, 3),
            st.integers(0, 999), st.integers(0, 999),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_pages_of_programs_count_as_touched_whoever_marks_them(
    maps: list[tuple[str, int, int, int]],
) -> None:
    programs = {inode for perms, inode, *_ in maps if inode and "x" in perms}
    rows = [(perms, inode, held, min(held, marked)) for perms, inode, held, marked in maps]
    touched, resident = touched_and_resident("".join(mapping(*row) for row in rows).encode())
    assert resident == 1024 * sum(held for _, _, held, _ in rows)
    assert touched == 1024 * sum(
        held if inode in programs else marked for _, inode, held, marked in rows
    )
    # What neighbours do to the marks of programs changes nothing.
    others = [(*row[:3], row[2] if row[1] in programs else row[3]) for row in rows]
    again = touched_and_resident("".join(mapping(*row) for row in others).encode())
    assert again == (touched, resident)


def test_this_process_holds_what_the_kernel_says() -> None:
    touched, resident = touched_and_resident(Path("/proc/self/smaps").read_bytes())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert resident == pytest.approx(pages * mmap.PAGESIZE, rel=0.05)
    assert 0 < touched <= resident


@pytest.mark.parametrize("text", [b"", b"Rss: x kB\n", b"nothing\n", b"7f-8f\n"])
def test_what_is_no_table_of_mappings_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        touched_and_resident(text)


def test_after_memory_has_grown_the_shortest_window_comes_first(tmp_path: Path) -> None:
    clock = Clock()
    memory = TouchedMemory(tmp_path, clock=clock)
    made_up(tmp_path, 7, 100, 300)
    memory.look([7])
    clock.now_ns += LENGTHS_NS[0]
    assert read(memory.look([7])).is_steady
    made_up(tmp_path, 7, 250, 400)
    clock.now_ns += LENGTHS_NS[1]
    grown = read(memory.look([7]))
    assert (grown.held_bytes, grown.resident_bytes) == (300 * 1024, 400 * 1024)
    assert not grown.is_steady
    clock.now_ns += LENGTHS_NS[0]
    assert read(memory.look([7])).window_s == LENGTHS_NS[0] / 1e9


def test_a_window_in_which_somebody_left_says_nothing(tmp_path: Path) -> None:
    clock = Clock()
    memory = TouchedMemory(tmp_path, clock=clock)
    for pid in (7, 8):
        made_up(tmp_path, pid, 100, 300)
    memory.look([7, 8])
    clock.now_ns += LENGTHS_NS[0]
    assert memory.look([7]) is None
    clock.now_ns += LENGTHS_NS[0]
    assert read(memory.look([7])).processes == 1
    made_up(tmp_path, 9, 50, 60)  # who came meanwhile is looked at from the next window on
    clock.now_ns += LENGTHS_NS[1]
    assert read(memory.look([7, 9])).processes == 1
    clock.now_ns += LENGTHS_NS[2]
    assert read(memory.look([7, 9])).touched_bytes == 150 * 1024


@given(st.integers(1, 3 * SECOND_NS))
def test_slow_walks_make_windows_longer(cost_ns: int) -> None:
    clock = Clock()
    memory = TouchedMemory(Path("/nowhere"), clock=clock, spent=iter([0, cost_ns, 0, 0]).__next__)
    memory._clear = lambda pid: True  # type: ignore[method-assign]
    memory._resident = lambda pid: 2  # type: ignore[method-assign]
    memory._usage = lambda pid: (1, 2)  # type: ignore[method-assign]
    memory.look([7])
    begin_ns = clock.now_ns
    clock.now_ns = begin_ns + max(LENGTHS_NS[0], 100 * cost_ns) - 1
    assert memory.look([7]) is None
    clock.now_ns += 1
    assert memory.look([7]) is not None  # the walks take a hundredth of the time at most


def test_kernels_that_do_not_tell_say_so_once(tmp_path: Path) -> None:
    memory = TouchedMemory(tmp_path)
    (tmp_path / "7").mkdir()
    assert memory.look([7]) is None
    assert "kernel" in memory.failure
    assert memory.look([7]) is None


CHILD = f"""
import mmap, sys
hot, cold = mmap.mmap(-1, {HOT}), mmap.mmap(-1, {COLD})
def touch(pages):
    for at in range(0, len(pages), 4096):
        pages[at] = 1
touch(cold)
while True:
    touch(hot)
    print(flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_touches_a_quarter_of_its_memory_is_seen_to() -> None:
    clock = Clock()
    memory = TouchedMemory(clock=clock)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018
        child.stdout.readline()  # both parts were touched
        if memory.look([child.pid]) is not None or memory.failure:
            pytest.skip(memory.failure)
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()  # the hot part once more
        clock.now_ns += LENGTHS_NS[0]
        seen = read(memory.look([child.pid]))
        child.kill()
    assert seen.resident_bytes >= HOT + COLD
    # The interpreter's own pages come on top of the hot ones. Where the kernel samples memory
    # as well (DAMON), it takes marks of touched pages away.
    assert 0.75 * HOT <= seen.touched_bytes <= HOT + 16 * MIB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_recording_has_windows_where_they_were_asked_for(tmp_path: Path) -> None:
    source = f"import time\npages = bytearray({COLD})\ntime.sleep(6)\n"
    found = record(tmp_path, source, working_set=True, measure_host=False)
    if not found.touched:
        assert any("touched" in one for one in found.warnings)
        return
    last = found.touched[-1]
    assert last.resident_bytes >= COLD
    assert last.touched_bytes < COLD  # it sleeps
    assert record(tmp_path, "pass", measure_host=False).touched == ()


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RecordingError, match="only Linux"):
        record(tmp_path, "pass", working_set=True)
