"""Bring a data set that does not ship: from upstream at one commit, or from a copy of the tables.

What arrives is turned into our form under the user's data folder
(``$XDG_DATA_HOME/advisor/measurements``), where every reader looks. Downloads wait beside the
cache until all of them are there; the tables then take their places one by one, each whole.

A file whose SHA-256 was never seen is trusted when it comes first, and its checksum is kept in
``fetched.json``: from then on another file is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor import data
from advisor.catalogue.places import cache_folder
from advisor.collectors import atomic, bounded
from advisor.errors import ModelError, UsageError
from advisor.measurements import BY_NAME
from advisor.measurements.build import normalise
from advisor.measurements.dataset import Dataset
from advisor.measurements.download import Download
from advisor.measurements.remotes import CHECKSUMS, REMOTES, Remote
from advisor.measurements.table import FOLDER, write_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

GITHUB: Final = "https://raw.githubusercontent.com"
LOCK: Final = "fetched.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How data sets are brought.

    Attributes
    ----------
    out : Path
        Folder that holds ``measurements/``.
    cache : Path
        Where downloads wait.
    source : str
        A copy of the collected tables: a folder laid out like ``shared/data``, or its address;
        ``""`` takes upstream's own files.
    host : str
        Where upstream's files are.
    download : Download
    say : callable
        Takes a line for the user.
    """

    out: Path = field(default_factory=data.user_data)
    cache: Path = field(default_factory=lambda: cache_folder() / FOLDER)
    source: str = ""
    host: str = GITHUB
    download: Download = field(default_factory=Download)
    say: Callable[[str], None] = lambda _line: None

    def bring(self, name: str) -> dict[str, int]:
        """Bring a data set; returns file -> rows (bytes of a file that keeps its form).

        Raises
        ------
        UsageError
            If there is no such data set, it ships, or it has to be taken from a copy.
        ModelError
            If a file cannot be had, or is another one than was expected.
        OSError
            If the disk is full or the folder cannot be written.
        """
        dataset = _fetchable(name)
        if self.source:
            return self._from_copy(dataset)
        remote = REMOTES.get(name)
        if remote is None:
            raise UsageError(
                f"{dataset.title}: upstream's files are not read, only the collected tables",
                hint=f"advisor data fetch {name} --from FOLDER or URL (laid out like shared/data)",
            )
        return self._from_upstream(dataset, remote)

    def _from_upstream(self, dataset: Dataset, remote: Remote) -> dict[str, int]:
        raw = self.cache / dataset.name / remote.upstream.commit
        lock = self._lock()
        for number, file in enumerate(remote.files, start=1):
            self.say(f"{dataset.name}: {number} of {len(remote.files)}: {file}")
            url = remote.url(self.host, file)
            key = f"{remote.upstream.repository}/{remote.upstream.commit}/{file}"
            lock[key] = self.download.get(url, raw / file, lock.get(key))
        self._keep(lock)
        self.say(f"{dataset.name}: converting")
        written = {}
        for file, frame in remote.assemble(raw).items():
            write_frame(frame, self.out / FOLDER / file)
            written[file] = len(frame)
        shutil.rmtree(raw, ignore_errors=True)
        return written

    def _from_copy(self, dataset: Dataset) -> dict[str, int]:
        places = [place.published for place in dataset.places]
        if self.source.startswith(("http://", "https://")):
            copy = self.cache / dataset.name / "copy"
            for place in dict.fromkeys(places):
                self.say(f"{dataset.name}: {place}")
                url = f"{self.source.rstrip('/')}/{place}"
                self.download.get(url, copy / place, CHECKSUMS[place])
            written = self._ours(dataset, copy)
            shutil.rmtree(copy, ignore_errors=True)
            return written
        if not Path(self.source).is_dir():
            raise UsageError(
                f"there is no folder {self.source}", hint="name another with --from, or an address"
            )
        self.say(f"{dataset.name}: reading {self.source}")
        return self._ours(dataset, Path(self.source))

    def _ours(self, dataset: Dataset, copy: Path) -> dict[str, int]:
        written = normalise(dataset, copy, self.out)
        for kept in dataset.files.values():
            found = kept.path_under(copy)
            if found is None:
                raise dataset.absent(copy)
            content = found.read_bytes()
            atomic.write_bytes(self.out / FOLDER / kept.file, content)
            written[kept.file] = len(content)
        return written

    def _lock(self) -> dict[str, str]:
        path = self.out / FOLDER / LOCK
        if not path.is_file():
            return {}
        try:
            known = bounded.read_json(path)
            return {str(key): str(value) for key, value in known["sha256"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelError(f"cannot read {path}: {error}", hint="remove it") from error

    def _keep(self, lock: dict[str, str]) -> None:
        record: dict[str, Any] = {"schema_version": 1, "sha256": dict(sorted(lock.items()))}
        atomic.write_text(self.out / FOLDER / LOCK, json.dumps(record, indent=1) + "\n")


def fetchable() -> Iterator[str]:
    """Yield the data sets that do not ship."""
    return (name for name, dataset in BY_NAME.items() if not dataset.ships)


def _fetchable(name: str) -> Dataset:
    dataset = BY_NAME.get(name)
    if dataset is None or dataset.ships:
        what = f"{name!r} ships already" if dataset else f"no data set named {name!r}"
        raise UsageError(what, hint=f"one of: {', '.join(fetchable())}")
    return dataset
