"""Where runs are kept: folders, URLs, and what earlier versions left."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.collectors.derive import store
from advisor.collectors.derive.resources import advised_memory_bytes, peak_memory_bytes
from advisor.collectors.derive.store import (
    default_run_root,
    find_run,
    latest_run,
    list_runs,
    local_folder,
    local_folders,
    new_run,
    read_recording,
    remove_run,
)
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.record_files import PROFILER_FILE
from advisor.collectors.format.recording import Reading
from advisor.collectors.run import runner

GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"


def test_the_environment_names_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ADVISOR_RUNS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_run_root() == tmp_path / "data" / "advisor" / "runs"
    monkeypatch.setenv("ADVISOR_RUNS", str(tmp_path))
    assert default_run_root() == tmp_path
    monkeypatch.setenv("ADVISOR_RUNS", "s3://team/runs")
    assert default_run_root() == "s3://team/runs"
    assert local_folder() == store.mirror_of("s3://team/runs")


def test_runs_of_earlier_versions_are_found_beside_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nobody names a folder; recorded is in the user's folder, from anywhere."""
    monkeypatch.delenv("ADVISOR_RUNS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    old = new_run("old", Path(".advisor") / "runs")
    assert list_runs() == [old.relative_to(Path.cwd())]
    new = new_run("new")
    assert new.parent == tmp_path / "data" / "advisor" / "runs"
    assert {run.name for run in list_runs()} == {old.name, new.name}
    assert find_run("old").name == old.name
    assert local_folders() == (new.parent, Path(".advisor/runs"))
    monkeypatch.chdir(tmp_path)
    assert list_runs() == [new]
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("ADVISOR_RUNS", str(tmp_path / "named"))
    assert list_runs() == []


def test_runs_are_listed_in_order_and_found_by_part_of_their_name(tmp_path: Path) -> None:
    first, second = new_run("first", tmp_path), new_run("second", tmp_path)
    assert set(list_runs(tmp_path)) == {first, second}
    assert latest_run(tmp_path) == max(first, second)
    assert find_run("first", tmp_path) == first
    assert find_run(str(second), tmp_path) == second
    with pytest.raises(RecordingError, match="2 runs with"):
        find_run("s", tmp_path)
    with pytest.raises(RecordingError, match="no run with"):
        find_run("third", tmp_path)


def test_only_a_recordings_own_files_are_removed(tmp_path: Path) -> None:
    run = new_run("mine", tmp_path)
    (run / PROFILER_FILE).write_bytes(b"")  # no mark of a process that is still there: this one
    (run / "notes.txt").write_text("keep me")
    with pytest.raises(RecordingError, match="not the recording's"):
        remove_run(run)
    assert (run / "notes.txt").exists()
    (run / "notes.txt").unlink()
    run.rmdir()


def test_names_are_made_safe(tmp_path: Path) -> None:
    assert new_run("../../etc/pass wd", tmp_path).parent == tmp_path


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_team_shares_runs_at_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One machine pushes; another, with an empty cache, reads the same recording."""
    pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}" if kind == "memory" else f"file://{tmp_path}/team"
    run = tmp_path / "20260101-000000-golden-0000"
    run.mkdir()
    for path in GOLDEN.iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    assert list_runs(url) == []
    store.push_run(run, url)
    (shared,) = list_runs(url)
    assert read_recording(shared).step_time == read_recording(run).step_time
    before = (shared / PROFILER_FILE).stat().st_mtime_ns
    assert list_runs(url) == [shared]
    assert (shared / PROFILER_FILE).stat().st_mtime_ns == before


def test_a_url_that_cannot_be_read_is_said_in_words(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(RecordingError, match="cannot open nothing://x"):
        list_runs("nothing://x")


def test_a_run_of_schema_1_reads_as_it_did(tmp_path: Path) -> None:
    """Recorded on 2026-11-21 by examples/digits_cnn.py --epochs 4; see golden/README.md."""
    seen = read_recording(GOLDEN)
    assert (seen.status, seen.exit_code, seen.world_size) == ("finished", 0, 1)
    assert seen.step_time is not None
    assert seen.step_time.clock == "optimizer"
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.epochs) == (180, 4)
    assert seen.deep_step is not None
    assert seen.deep_step.parameters == 94154
    assert sum(seen.deep_step.operators["flop"]) == pytest.approx(458e6, rel=0.01)
    assert seen.loading is not None
    assert (seen.loading.batch, seen.loading.dataset_samples) == (32, 1437)
    assert seen.optimizers == ("AdamW",)


def test_shared_pages_count_once_in_the_peak() -> None:
    """Four processes of 100 that share 60 of it: 220, not 400; never less than the largest."""

    def reading(t_s: float, rss: int, pss: int | None) -> Reading:
        counters = dict.fromkeys(
            ("cpu_s", "run_delay_s", "disk_read_bytes", "disk_write_bytes", "throttled_s",
             "network_received_bytes", "network_sent_bytes"), 0,
        )  # fmt: skip
        return Reading(
            t_s=t_s, processes=4, rss_bytes=rss, pss_bytes=pss, pressure_fraction=None, **counters
        )

    plain = [reading(0, 300, None), reading(1, 400, None)]
    told = [*plain, reading(2, 400, 220), reading(3, 400, 220)]
    assert peak_memory_bytes(plain, 100) == 400
    assert peak_memory_bytes(told, 100) == 220
    assert peak_memory_bytes(told, 250) == 250
    # Looked at from the first reading on: what was found counts, whatever is resident.
    forked = [reading(0, 100, 100), reading(1, 200, 132), reading(2, 600, 132)]
    assert peak_memory_bytes(forked, 100) == 132


def test_recording_on_windows_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_IS_POSIX", False)
    with pytest.raises(RecordingError, match="needs Linux or macOS"):
        runner.plan_recording(["true"], run_root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("peak_mib", "advised_gib"),
    [(0, 0.5), (100, 0.5), (800, 1), (853, 1), (854, 2), (3000, 4), (50_000, 64), (60_000, 128)],
)
def test_advised_memory_is_the_next_size_above_the_peak_with_its_margin(
    peak_mib: int, advised_gib: float
) -> None:
    assert advised_memory_bytes(peak_mib * 2**20) == advised_gib * 2**30


def test_nonsense_sizes_are_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="out of range"):
        advised_memory_bytes(-1)
