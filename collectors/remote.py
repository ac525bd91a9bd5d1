"""A team's runs at any fsspec URL: recorded here, copied there, mirrored back when looked at.

Recording needs a local folder (one ``write(2)`` a record); a URL's runs live in a mirror under
the user's cache and are copied file by file when a recording has ended. Files of a run never
change afterwards, except that ``recover`` may append to the profiler's.
"""

from __future__ import annotations

import hashlib
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from advisor.collectors import atomic
from advisor.collectors.errors import RecordingError
from advisor.collectors.private import private_folder
from advisor.collectors.run_files import EVENT_FILES, PROFILER_FILE
from advisor.collectors.user_folders import cache_folder


def is_url(root: str | Path) -> bool:
    """Whether ``root`` names a place beyond the file system, as ``s3://bucket/runs``."""
    return "://" in str(root)


def mirror_of(url: str) -> Path:
    """Return the local folder in which the runs of ``url`` are mirrored."""
    return cache_folder() / "runs" / hashlib.sha256(url.encode()).hexdigest()[:16]


def push(run: Path, url: str) -> None:
    """Copy a run's files to ``url``."""
    files, base = _file_system(url)
    try:
        files.makedirs(f"{base}/{run.name}", exist_ok=True)
        for path in [*sorted(run.glob(EVENT_FILES)), run / PROFILER_FILE]:
            files.put_file(str(path), f"{base}/{run.name}/{path.name}")
    except Exception as error:  # every file system has errors of its own
        raise RecordingError(
            f"cannot copy {run.name} to {url}: {error}", hint=f"the run is kept in {run}"
        ) from error


def pull(url: str) -> Path:
    """Bring what the mirror of ``url`` lacks, and return the mirror."""
    files, base = _file_system(url)
    mirror = mirror_of(url)
    try:
        found = files.find(base, detail=True) if files.exists(base) else {}
        for name, details in found.items():
            run, file = Path(name).parent.name, Path(name).name
            if run == ".." or not (file == PROFILER_FILE or fnmatchcase(file, EVENT_FILES)):
                continue  # not a run's
            path = mirror / run / file
            if not path.is_file() or path.stat().st_size < details["size"]:
                private_folder(path.parent)
                with atomic.writing(path, mode=0o600) as copy, files.open(name, "rb") as original:
                    shutil.copyfileobj(original, copy)
    except Exception as error:  # every file system has errors of its own
        raise RecordingError(
            f"cannot read the runs at {url}: {error}", hint="check the address and your rights"
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
