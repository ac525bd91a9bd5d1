"""The store of runs, and the only way from a folder to a ``Recording``.

Recording needs a local folder (one ``write(2)`` a record); a URL's runs live in a mirror under
the user's cache and are copied file by file when a recording has ended. Files of a run never
change afterwards, except that ``recover`` may append to the profiler's. A run that could not be
copied is marked, and goes along with the next one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors import atomic
from advisor.collectors.atomic import OWNER_ONLY, cache_folder, data_folder, private_folder
from advisor.collectors.errors import RecordingError, counted, printable, shown
from advisor.collectors.format import (
    EVENT_FILES,
    NOTEBOOK_SCRIPT,
    PROFILER_FILE,
    Appender,
    identity,
    mark,
    parse,
    profiler_lives,
)
from advisor.collectors.hooks import format as fmt

if TYPE_CHECKING:
    from advisor.collectors.format import Recording


_UNSENT: Final = "unsent"


def is_url(root: str | Path) -> bool:
    """Whether ``root`` names a place beyond the file system, as ``s3://bucket/runs``."""
    return "://" in str(root)


def mirror_of(url: str, what: str = "runs") -> Path:
    """Return the local folder in which the runs of ``url`` are mirrored, or its ``"models"``."""
    return cache_folder() / what / hashlib.sha256(url.encode()).hexdigest()[:16]


def push_run(run: Path, url: str) -> None:
    """Copy a run's files to ``url``, and those of runs that an earlier copy did not bring."""
    try:
        (run / _UNSENT).touch(mode=0o600)
        files, base = _file_system(url)
        for unsent in sorted(run.parent.glob(f"*/{_UNSENT}")):
            one = unsent.parent
            files.makedirs(f"{base}/{one.name}", exist_ok=True)
            # The profiler's last: without it a folder is no run yet.
            for path in [*sorted(one.glob(EVENT_FILES)), one / PROFILER_FILE]:
                files.put_file(str(path), f"{base}/{one.name}/{path.name}")
            unsent.unlink(missing_ok=True)  # another recording may take it along too
    except RecordingError:
        raise
    except Exception as error:  # every file system has errors of its own
        raise RecordingError(
            f"cannot copy {run.name} to {url}: {error}",
            hint=f"the run is kept in {run}; the next recording takes it along",
        ) from error


def pull(url: str) -> Path:
    """Bring what the mirror of ``url`` lacks, and return the mirror."""

    def lacks(_: Path, path: Path, size: int) -> bool:
        is_a_runs = path.name == PROFILER_FILE or fnmatchcase(path.name, EVENT_FILES)
        return is_a_runs and not (path.is_file() and path.stat().st_size >= size)

    return _bring(url, mirror_of(url), lacks, "runs")


_MOST_OF_A_MODEL: Final = 64 << 20  # bytes of a file


def pull_models(url: str) -> Path:
    """Bring the models that ``advisor train`` wrote to ``url``: a folder each. All, each time."""
    top = url.rstrip("/").rpartition("/")[2]

    def is_a_models(name: Path, _: Path, size: int) -> bool:
        return name.parent.parent.name == top and size <= _MOST_OF_A_MODEL

    return _bring(url, mirror_of(url, "models"), is_a_models, "models")


def models_version(url: str) -> str:
    """Return a text that differs where a file at ``url`` was replaced.

    Raises RecordingError if the address cannot be read.
    """
    files, base = _file_system(url)
    try:
        files.invalidate_cache()
        found = files.find(base, detail=True)
    except Exception as error:  # every file system has errors of its own
        raise RecordingError(
            f"cannot read the models at {url}: {error}", hint="check the address and your rights"
        ) from error
    keys = ("size", "ETag", "LastModified", "mtime")
    return repr([(name, *(str(found[name].get(key)) for key in keys)) for name in sorted(found)])


def _bring(url: str, mirror: Path, wanted: Callable[[Path, Path, int], bool], what: str) -> Path:
    """Copy files of ``url`` to the mirror: those wanted by name there, place here and size."""
    files, base = _file_system(url)
    try:
        found = files.find(base, detail=True) if files.exists(base) else {}
        for name, details in found.items():
            there = Path(name)
            path = mirror / there.parent.name / there.name
            if there.parent.name != ".." and wanted(there, path, details["size"]):
                private_folder(path.parent)
                with atomic.writing(path, mode=0o600) as copy, files.open(name, "rb") as original:
                    shutil.copyfileobj(original, copy)
    except Exception as error:  # every file system has errors of its own
        raise RecordingError(
            f"cannot read the {what} at {url}: {error}", hint="check the address and your rights"
        ) from error
    return mirror


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        files, base = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise RecordingError(
            f"cannot open {url}: {error}", hint="install the file system that fsspec asks for"
        ) from error
    return files, str(base).rstrip("/")


Root = Path | str
VARIABLE: Final = "ADVISOR_RUNS"
# Where runs were kept before they had the user's folder.
EARLIER: Final = Path(".advisor") / "runs"


def default_run_root() -> Root:
    """Return where runs are kept: ``ADVISOR_RUNS`` (a folder or URL), else the user's folder."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if is_url(named) else Path(named)
    return data_folder() / "runs"


def local_folder(root: Root | None = None) -> Path:
    """Return the folder that runs are recorded in: ``root`` itself, or a URL's mirror."""
    place = default_run_root() if root is None else root
    return mirror_of(str(place)) if is_url(place) else Path(place)


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
    place = default_run_root() if root is None else root
    if is_url(place):
        pull(str(place))
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
            f"no run in {default_run_root() if root is None else root}",
            hint="`advisor profile train.py` makes one",
        )
    return runs[-1]


def find_run(name: str, root: Root | None = None) -> Path:
    """Return the run that ``name`` means: a path, a run id, or the unique part of one.

    Raises RecordingError if there is none, or more than one.
    """
    path = Path(name)
    if (path / PROFILER_FILE).exists():
        return path
    runs = [run for run in list_runs(root) if name in run.name]
    exact = [run for run in runs if run.name == name]
    if len(exact or runs) == 1:
        return (exact or runs)[0]
    what = "no run" if not runs else counted(len(runs), "run")
    raise RecordingError(
        f"{what} with {name!r} in the name", hint="list the recorded runs with `advisor runs list`"
    )


def new_run(name: str, root: Root | None = None) -> Path:
    """Make the folder of a new run and return it as an absolute path."""
    folder = local_folder(root).absolute()
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    # Its patterns take milliseconds to compile, and most readers need none.
    from advisor.collectors.hooks.redaction import redacted

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

    Raises RecordingError if there is no run, or it is empty, unreadable or of a later version.
    """
    from advisor.collectors.derive.read import recording

    derived = recording(Path(path))
    if derived.status == "running" and not profiler_lives(Path(path)):
        return replace(derived, status="killed", stop_reason="the profiler was killed")
    return derived


def recover_run(path: Path | str) -> Recording:
    """Close a run whose profiler was killed, and return it.

    Raises RecordingError if it is still being recorded, or not readable, or the disk is full.
    """
    from advisor.collectors.derive.profiler_log import read_profiler_log
    from advisor.collectors.derive.read import recording

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


def remove_run(path: Path | str) -> None:
    """Delete a run: the files that a recording consists of, then its folder.

    Raises RecordingError if it is still being recorded, or something else lies in the folder.
    """
    run = Path(path)
    if profiler_lives(run):
        raise RecordingError(f"{run.name} is still being recorded", hint="end it first")
    for file in _own_files(run):
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


def _own_files(run: Path) -> list[Path]:
    """Return the files that a recording consists of."""
    named = (PROFILER_FILE, fmt.CONTROL_FILE, NOTEBOOK_SCRIPT, _UNSENT)
    return [*(run / name for name in named), *run.glob(EVENT_FILES)]


# Larger files hold readings: a header takes a few KiB, and is not read again and again.
_MOST_BYTES: Final = 2**20
# A run of an earlier version that bears no mark of its profiler: the host's benchmark, which came
# before the first record, took half a minute at most.
_UNMARKED_S: Final = 3600.0


def recover_all(root: Root | None = None) -> list[tuple[str, str, str]]:
    """Close or take away every run whose profiler was killed; return what became of each.

    Rows of (run, what, why): ``"closed"``, ``"deleted"``, ``"recording"`` or ``"unreadable"``.
    """
    return [one for run in list_runs(root) if (one := _recovered(run)) is not None]


def _recovered(run: Path) -> tuple[str, str, str] | None:
    name = printable(run.name)
    try:
        if never_recorded(run):
            remove_run(run)
            return name, "deleted", "nothing was recorded"
        if fmt.END in _kinds(run / PROFILER_FILE):
            return None
        if profiler_lives(run):
            return name, "recording", "its profiler is at work"
        closed = "closed", f"{recover_run(run).duration_s:.0f} s are kept"
    except Exception as error:  # one bad run costs no other
        return name, "unreadable", shown(str(error))
    return name, *closed


def clean_runs(root: Root | None = None) -> int:
    """Take away the runs that never held a reading and whose profiler is dead; return how many.

    What cannot be read or deleted is left: this is done in passing.
    """
    removed = 0
    try:
        runs = [run for place in local_folders(root) for run in list_runs(place)]
    except RecordingError:
        return 0
    for run in runs:
        try:
            if never_recorded(run):
                remove_run(run)
                removed += 1
        except (OSError, RecordingError):
            continue
    return removed


def never_recorded(run: Path) -> bool:
    """Whether a run is this user's, its profiler is dead, and no reading or step was recorded.

    Its folder must hold nothing but a recording's files.
    """
    path = run / PROFILER_FILE
    about = path.stat()
    if about.st_size > _MOST_BYTES or about.st_uid != os.geteuid() or run.is_symlink():
        return False
    data = path.read_bytes()
    if not _holds_beginning_only(data):  # first: most runs have a reading right after the header
        return False
    if not identity(data) and time.time() - about.st_mtime < _UNMARKED_S:
        return False
    return _holds_nothing_beside(run) and not profiler_lives(run)


def _holds_beginning_only(data: bytes) -> bool:
    """Whether a profiler's file was cut off before its first reading, and is not damaged."""
    at = 0
    for kind, _, end in parse(data):
        if kind not in (fmt.HEADER, fmt.FACT):
            return False
        at = end
    # One record may be torn off; more than that is damage, and somebody may want to look at it.
    return len(data) - at < fmt.FRAME.size or data[at : at + 2] == fmt.MAGIC


def _holds_nothing_beside(run: Path) -> bool:
    for entry in os.scandir(run):
        is_events = fnmatchcase(entry.name, EVENT_FILES)
        if not (is_events or entry.name in (PROFILER_FILE, fmt.CONTROL_FILE)):
            return False
        if is_events and _kinds(Path(entry.path)) - {fmt.HEADER, fmt.FACT}:
            return False
    return True


def _kinds(path: Path) -> set[int]:
    """Return the kinds of records in a file."""
    return {kind for kind, _, _ in parse(path.read_bytes())}
