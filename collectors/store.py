"""The store of runs, and the only way from a folder to a ``Recording``."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.collectors import remote
from advisor.collectors.errors import RecordingError
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.redaction import redacted
from advisor.collectors.private import OWNER_ONLY, private_folder
from advisor.collectors.profiler_life import mark, profiler_lives
from advisor.collectors.records import Appender
from advisor.collectors.run_files import EVENT_FILES, PROFILER_FILE
from advisor.collectors.user_folders import data_folder

if TYPE_CHECKING:  # listing many runs reads none of them: what derives recordings comes when asked
    from advisor.collectors.recording import Recording

Root = Path | str
VARIABLE: Final = "ADVISOR_RUNS"
# Where runs were kept before they had the user's folder.
EARLIER: Final = Path(".advisor") / "runs"


def run_root() -> Root:
    """Return where runs are kept: ``ADVISOR_RUNS`` (a folder or URL), else the user's folder."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if remote.is_url(named) else Path(named)
    return data_folder() / "runs"


def local_folder(root: Root | None = None) -> Path:
    """Return the folder that runs are recorded in: ``root`` itself, or a URL's mirror."""
    place = run_root() if root is None else root
    return remote.mirror_of(str(place)) if remote.is_url(place) else Path(place)


def local_folders(root: Root | None = None) -> tuple[Path, ...]:
    """Return the folders that runs are looked for in, the one they are recorded in first.

    Where nobody names a folder, runs that earlier versions kept beside the script are found too.
    """
    place = local_folder(root)
    if root is None and not os.environ.get(VARIABLE) and EARLIER.is_dir():
        return place, EARLIER
    return (place,)


def list_runs(root: Root | None = None) -> list[Path]:
    """Return the folders of all runs, oldest first; a URL's are brought here first."""
    place = run_root() if root is None else root
    if remote.is_url(place):
        remote.pull(str(place))
    runs = [run for folder in local_folders(root) for run in _runs_in(folder)]
    return sorted(runs, key=lambda run: run.name)  # names begin with the time


def _runs_in(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordingError(
            f"cannot look into {folder}: {error.strerror}",
            hint=f"name another folder of runs with {VARIABLE}",
        ) from error
    return [folder / name for name in names if os.path.lexists(f"{folder}/{name}/{PROFILER_FILE}")]


def latest_run(root: Root | None = None) -> Path:
    """Return the newest run's folder."""
    runs = list_runs(root)
    if not runs:
        raise RecordingError(
            f"no run in {run_root() if root is None else root}",
            hint="`advisor profile train.py` makes one",
        )
    return runs[-1]


def find_run(name: str, root: Root | None = None) -> Path:
    """Return the run that ``name`` means: a path, a run id, or the unique part of one.

    Raises
    ------
    RecordingError
        If there is none, or more than one.
    """
    path = Path(name)
    if (path / PROFILER_FILE).exists():
        return path
    runs = [run for run in list_runs(root) if name in run.name]
    exact = [run for run in runs if run.name == name]
    if len(exact or runs) == 1:
        return (exact or runs)[0]
    what = "no run" if not runs else f"{len(runs)} runs"
    raise RecordingError(
        f"{what} with {name!r} in the name",
        hint="`advisor runs list` shows the runs that are here",
    )


def new_run(name: str, root: Root | None = None) -> Path:
    """Make the folder of a new run and return it as an absolute path."""
    folder = local_folder(root).absolute()
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in redacted(name))[:40] or "run"
    run = folder / f"{stamp}-{safe}-{secrets.token_hex(2)}"
    try:
        private_folder(folder)
        run.mkdir(mode=OWNER_ONLY)
        run.chmod(OWNER_ONLY)
        log = Appender(run / PROFILER_FILE)
        log.write_json(fmt.FACT, mark())
        log.close()
    except OSError as error:
        raise RecordingError(
            f"cannot write a run into {folder}: {error.strerror}",
            hint="name a folder you may write to with --runs or ADVISOR_RUNS",
        ) from error
    return run


def read_recording(path: Path | str) -> Recording:
    """Derive the recording in a run's folder from its raw files.

    A run whose profiler was killed reads as ``"killed"``: what was written until then is there.

    Raises
    ------
    RecordingError
        If there is no run, or it is empty, unreadable or of a later version.
    """
    from advisor.collectors.derive import recording

    derived = recording(Path(path))
    if derived.status == "running" and not profiler_lives(Path(path)):
        return replace(derived, status="killed", stop_reason="the profiler was killed")
    return derived


def recover(path: Path | str) -> Recording:
    """Close a run whose profiler was killed, and return it.

    Raises
    ------
    RecordingError
        If it is still being recorded, or not readable, or the disk is full.
    """
    from advisor.collectors.derive import recording
    from advisor.collectors.profiler_log import read_profiler_log

    run = Path(path)
    derived = recording(run)
    if derived.status != "running":
        return derived
    if profiler_lives(run):
        raise RecordingError(
            f"{run.name} is still being recorded", hint="wait for it to end, or end it first"
        )
    try:
        log = Appender(run / PROFILER_FILE)
    except OSError as error:
        raise _unwritable(run, error.strerror) from error
    start_ns = read_profiler_log(run / PROFILER_FILE).header["t_ns"]
    log.write_json(
        fmt.END,
        {
            "status": "killed",
            "stop_reason": "the profiler was killed",
            "exit_code": None,
            "t_ns": start_ns + int(derived.duration_s * 1e9),
        },
    )
    log.sync()
    log.close()
    if log.lost:
        raise _unwritable(run, "the disk is full")
    return recording(run)


def _unwritable(run: Path, why: str | None) -> RecordingError:
    return RecordingError(
        f"cannot close the run {run.name}: {why}", hint="make room on the disk, then try again"
    )


def remove(path: Path | str) -> None:
    """Delete a run: the files that a recording consists of, then its folder.

    Raises
    ------
    RecordingError
        If it is still being recorded, or something else lies in the folder.
    """
    run = Path(path)
    if profiler_lives(run):
        raise RecordingError(f"{run.name} is still being recorded", hint="end it first")
    for file in [run / PROFILER_FILE, run / fmt.CONTROL_FILE, *run.glob(EVENT_FILES)]:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RecordingError(
                f"cannot delete {file}: {error.strerror}", hint="check whose file it is"
            ) from error
    try:
        run.rmdir()
    except OSError as error:
        raise RecordingError(
            f"{run} holds files that are not the recording's", hint="look at them, then delete it"
        ) from error
