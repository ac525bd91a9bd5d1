"""Data sets made for shipping, or brought from upstream or from a copy of the tables."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor import data
from advisor.catalogue.snapshot import cache_folder
from advisor.catalogue.upkeep.download import OPENER, DownloadLimits
from advisor.collectors import atomic, bounded
from advisor.errors import AdvisorError, ModelError, UsageError
from advisor.lab.data import ALL, BY_NAME, HIVEMIND, public_runs
from advisor.lab.data.dataset import FOLDER, Dataset, Upstream, github, read_frame, write_frame
from advisor.lab.data.steps import POLLUX, SIA
from advisor.records.files import write_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

_BLOCK: Final = 1 << 16
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_SUCH_RANGE: Final = 416
_HINT: Final = "try again: what has come is kept; or name a copy with --from FOLDER or URL"


class _CutError(Exception):
    """A transfer that may be gone on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """How files are downloaded: tries, waits, silence, and the longest that is taken."""

    limits: DownloadLimits = field(default_factory=DownloadLimits)
    sleep: Callable[[float], None] = time.sleep
    max_bytes: int = 64 << 20

    def get(self, url: str, target: Path, sha256: str | None) -> str:
        """Download a file, unless it is there with its checksum; returns its SHA-256.

        ``url``: ``http://`` or ``https://``; ``target``: its folder is made; ``sha256``: what the
        file must have; None where nobody has seen it yet.

        Raises ModelError if it cannot be had, or is not the expected file. Raises OSError if it
        cannot be written.
        """
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ModelError(f"{url} is not a web address", hint="name a folder, or http(s)://...")
        if target.is_file() and sha256 == _digest(target):
            return sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        self._complete(url, part)
        found = _digest(part)
        if sha256 is not None and found != sha256:
            _forget(part)
            raise ModelError(
                f"{url} is not the expected file: SHA-256 {found}, not {sha256}",
                hint="it was changed there or on the way; name a copy with --from FOLDER or URL",
            )
        os.replace(part, target)
        _forget(part)
        atomic.sync_folder(target.parent)
        return found

    def _complete(self, url: str, part: Path) -> None:
        """Add to the part until all of it is there."""
        for attempt in range(1, self.limits.tries + 1):
            try:
                self._add(url, part)
            except _CutError as cut:
                if attempt == self.limits.tries:
                    raise ModelError(f"{url} {cut} ({attempt} tries)", hint=_HINT) from cut
                self.sleep(self.limits.first_wait_s * 2 ** (attempt - 1))
            else:
                return

    def _add(self, url: str, part: Path) -> None:
        at = part.stat().st_size if part.is_file() else 0
        headers = {"User-Agent": "cloud-config-advisor", "Accept-Encoding": "identity"}
        tag = _tag_file(part)
        if at:
            headers["Range"] = f"bytes={at}-"
            if tag.is_file():
                headers["If-Range"] = tag.read_text()
        request = urllib.request.Request(url, headers=headers)
        try:
            with OPENER.open(request, timeout=self.limits.silence_s) as answer:
                is_rest = answer.status == http.client.PARTIAL_CONTENT
                if is_rest and not answer.headers.get("Content-Range", "").startswith(
                    f"bytes {at}-"
                ):
                    _forget(part)
                    raise _CutError("sent a different part than requested")
                if etag := answer.headers.get("ETag", ""):
                    tag.write_text(etag)
                self._save(answer, part, at if is_rest else 0, url)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NO_SUCH_RANGE:
                    _forget(part)
                    raise _CutError("is now shorter than what was downloaded") from error
                if error.code in _TRY_AGAIN:
                    raise _CutError(f"answers {error.code} {error.reason}") from error
                raise ModelError(
                    f"{url} answers {error.code} {error.reason}",
                    hint="name a copy of the tables with --from FOLDER or URL",
                ) from error
        except urllib.error.URLError as error:
            raise _CutError(f"cannot be reached: {error.reason}") from error
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise _CutError(f"broke off: {error or type(error).__name__}") from error

    def _save(self, answer: Any, part: Path, at: int, url: str) -> None:
        """Write the answer behind the first ``at`` bytes of the part."""
        stated = answer.headers.get("Content-Length", "")
        total = at + int(stated) if stated.isdigit() else None
        if total is not None and total > self.max_bytes:
            raise ModelError(f"{url} has {total:,} bytes: too many", hint="is it the right file?")
        with part.open("ab") as file:
            file.truncate(at)
            while block := answer.read1(_BLOCK):
                at += len(block)
                if at > self.max_bytes:
                    raise ModelError(f"{url} keeps sending data", hint="is it the right file?")
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if total is not None and at != total:
            raise _CutError(f"was cut short: {at:,} of {total:,} bytes")


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


def _forget(part: Path) -> None:
    for path in (part, _tag_file(part)):
        path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build(source: Path, out: Path) -> dict[str, int]:
    """Write every table that ships; returns file -> rows.

    Raises AdvisorError if a published table is missing or cannot be read.
    """
    written = first_minutes(source, out)
    for dataset in ALL:
        if dataset.ships:
            written |= normalise(dataset, source, out)
    return written


def first_minutes(source: Path, out: Path) -> dict[str, int]:
    """Write of hivemind's recordings what is read of them; returns file -> rows.

    The columns that are read, each node's first ``WINDOW_S``, measured values to four significant
    digits: 0.9 MB of 18.

    Raises AdvisorError if a file is missing or cannot be read.
    """
    began = read_frame(HIVEMIND.path("train_steps.parquet", source)).groupby("node_id")
    began_s = began["_runtime"].min()
    written = {}
    for name, columns in public_runs.HIVEMIND_COLUMNS.items():
        rows = read_frame(HIVEMIND.path(name, source))[list(columns)]
        target = out / FOLDER / HIVEMIND.files[name].file
        if name.endswith(".csv"):
            write_frame(rows, target)
        else:
            since_s = rows["_runtime"] - rows["node_id"].map(began_s)
            rows = rows[since_s.between(0.0, public_runs.WINDOW_S)].reset_index(drop=True)
            measured = rows.columns.difference(["node_id", "_runtime", "step", "global_epoch"])
            rows[measured] = rows[measured].map(lambda x: float(f"{x:.4g}"))
            target.parent.mkdir(parents=True, exist_ok=True)
            rows.to_parquet(target, index=False, compression="zstd", compression_level=19)
        written[HIVEMIND.files[name].file] = len(rows)
    return written


def normalise(dataset: Dataset, source: Path, out: Path) -> dict[str, int]:
    """Write the tables of one data set in our form; returns file -> rows.

    Raises AdvisorError if a published table is missing or cannot be read.
    """
    written: dict[str, int] = {}
    for table in dataset.tables.values():
        if not table.columns:
            continue  # has a writer of its own
        frame = table.read_under(source)
        if frame is None:
            raise dataset.absent(source)
        kept = table.selection(frame) if dataset.ships else frame
        write_frame(kept, out / FOLDER / table.file)
        written[table.file] = len(kept)
    for runs in dataset.runs.values():
        records = runs.read_under(source)
        if records is None:
            raise dataset.absent(source)
        write_records(out / FOLDER / runs.file, records)
        written[runs.file] = len(records)
    return written


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    out = Path(arguments[1]) if len(arguments) == 2 else data.root("datasets")
    try:
        for file, rows in build(Path(arguments[0]), out).items():
            sys.stdout.write(f"{rows:7} {file}\n")
    except AdvisorError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


# SHA-256 of the collected tables, by their place under a folder laid out like ``shared/data``.
CHECKSUMS: Final[Mapping[str, str]] = {
    "measurements/spot/skypilot_spot_intervals.csv":
        "92eea1ca45c7bb9cef46461d0a6d39fa1f88fdc06cb42e84d22d4dc22a96f834",
    "measurements/lambda/lambda_history_union.csv":
        "34ad5a11bfc0c92c3a6f8e25e0eb67c77d108587b7e53343837d19820df6a604",
    "measurements/pollux_sia/sia_placements.csv":
        "db462c9ca08a477c071137ee282bedad56d374942a4fa608ddfe64609fdc6991",
    "measurements/pollux_sia/sia_scalability.csv":
        "6c3e343f9db8c0b53c908e582258a9edfe2bb11b5083437e0412b940a0e8a142",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Upstream's own files of a data set, and what makes our tables of them.

    ``assemble`` gives tables by their place under ``measurements/``.
    """

    upstream: Upstream
    files: tuple[str, ...]
    assemble: Callable[[Path], dict[str, pd.DataFrame]]

    def url(self, host: str, file: str) -> str:
        return f"{host}/{self.upstream.repository}/{self.upstream.commit}/{file}"


# Sia: application -> clusters whose tables were collected. gpt_pmp's are made up by the authors;
# AWS's are Pollux's, which ship.
_SIA_CLUSTERS: Final = ("azure", "dgx", "dgx-ext", "rtx")
_SIA: Final = {
    **dict.fromkeys(("bert", "cifar10", "imagenet", "ncf"), _SIA_CLUSTERS),
    "yolov3": ("azure", "dgx", "dgx-ext"),
}


def _sia_file(table: str, application: str, cluster: str) -> str:
    return f"sia-simulator/traces/{application}/{table}-{cluster}.csv"


def _sia_pairs() -> Iterator[tuple[str, str]]:
    for application, clusters in _SIA.items():
        for cluster in clusters:
            yield application, cluster


def assemble_sia(folder: Path) -> dict[str, pd.DataFrame]:
    """Make Sia's two tables of upstream's files, Pollux's rows of AWS first.

    Raises ModelError if a file lacks a column.
    """
    import pandas as pd

    from advisor import data

    found = {}
    for name, table in SIA.tables.items():
        rows = [POLLUX.read(name, data.root("datasets"))]
        for application, cluster in _sia_pairs():
            path = folder / _sia_file(name, application, cluster)
            frame = read_frame(path).assign(app=application, cluster=cluster)
            rows.append(table.normalise(frame, path))
        found[table.file] = pd.concat(rows, ignore_index=True)
    return found


# Zones whose traces were collected: kind, nodes asked for, trace, zone and instance.
_SPOT: Final = (
    *(("availability", 1, "aws-02-15-2023", f"{zone}_v100_1") for zone in
      ("us-east-1a", "us-east-1c", "us-east-1d", "us-east-2b", "us-west-2a", "us-west-2c")),
    *(("availability", 1, "aws-10-26-2022", f"us-west-2a_{kind}")
      for kind in ("k80_1", "k80_8", "v100_1", "v100_8")),
    *(("preemption", 1, "aws-04-19-2023", f"{zone}_intel_64")
      for zone in ("us-east-1b", "us-east-1c", "us-east-1d")),
    *(("preemption", 1, "aws-04-22-2023", f"{zone}_v100_1")
      for zone in ("us-east-1c", "us-west-2c")),
    *(("preemption", 1, "gcp-04-30-2023", f"{zone}_c3-88")
      for zone in ("us-central1-c", "us-east1-b")),
    ("preemption", 4, "aws-08-03-2023", "us-west-2c_v100_1"),
)  # fmt: skip


def _spot_file(kind: str, nodes: int, trace: str, zone: str) -> str:
    return f"{kind}/{nodes}-node/{trace}/{zone}.json"


def assemble_spot(folder: Path) -> dict[str, pd.DataFrame]:
    """Make the table of constant intervals of SkyPilot's traces.

    A trace is a number of nodes that are up, every ``gap_seconds``.

    Raises ModelError if a file is none of them.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for kind, nodes, trace, place in _SPOT:
        zone, _, instance = place.partition("_")
        cloud, month, day, year = trace.split("-")
        told = {
            "kind": kind, "requested_nodes": nodes, "cloud": cloud, "trace": trace, "zone": zone,
            "instance": instance,
        }  # fmt: skip
        path = folder / _spot_file(kind, nodes, trace, place)
        for start_s, length_s, up in _intervals(path):
            rows.append(
                told
                | {"start_s": start_s, "duration_s": length_s, "available": up,
                   "price_usd_h": None, "start_date": f"{year}-{month}-{day}"}
            )  # fmt: skip
    return {"spot/intervals.csv": pd.DataFrame(rows)}


def _intervals(path: Path) -> Iterator[tuple[float, float, int]]:
    """Yield start [s], length [s] and nodes up of each stretch in which they stay the same."""
    try:
        content = bounded.read_json(path)
        gap_s, up = float(content["metadata"]["gap_seconds"]), [int(n) for n in content["data"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{path} is not a trace of SkyPilot's: {error}", hint="see SPOT"
        ) from error
    at = 0
    for count, stretch in itertools.groupby(up):
        length = len(list(stretch))
        yield at * gap_s, length * gap_s, count
        at += length


REMOTES: Final[Mapping[str, Remote]] = {
    "sia": Remote(
        upstream=github("siasosp23/artifacts@37c68be73bc2ea5f53c778190d1b88f6c00e7352")[0],
        files=tuple(_sia_file(table, *pair) for table in SIA.tables for pair in _sia_pairs()),
        assemble=assemble_sia,
    ),
    "spot": Remote(
        upstream=github("skypilot-org/spot-traces@b26631383e2b5f5b48a3d700b92ed133edaf452e")[0],
        files=tuple(_spot_file(*one) for one in _SPOT),
        assemble=assemble_spot,
    ),
}

GITHUB: Final = "https://raw.githubusercontent.com"
LOCK: Final = "fetched.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How data sets are brought into ``out``, which holds ``measurements/``.

    ``source`` is a copy of the collected tables (a folder laid out like ``shared/data``, or its
    address), "" takes upstream's own files from ``host``; ``say`` takes a line for the user.
    """

    out: Path = field(default_factory=data.user_data)
    cache: Path = field(default_factory=lambda: cache_folder() / FOLDER)
    source: str = ""
    host: str = GITHUB
    download: Download = field(default_factory=Download)
    say: Callable[[str], None] = lambda _line: None

    def bring(self, name: str) -> dict[str, int]:
        """Bring a data set; returns file -> rows (bytes of a file that keeps its form).

        Raises UsageError if there is no such data set, it ships, or it has to be taken from a
        copy. Raises ModelError if a file cannot be had, or is another one than was expected.
        Raises OSError if the disk is full or the folder cannot be written.
        """
        dataset = _fetchable(name)
        if self.source:
            return self._from_copy(dataset)
        remote = REMOTES.get(name)
        if remote is None:
            files = ", ".join(place.published for place in dataset.places)
            raise UsageError(
                f"{dataset.title}: upstream's tables were joined by hand over its history, so no "
                f"public address has what is read here: {files}",
                hint=f"advisor data fetch {name} --from FOLDER or URL that holds this file",
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
