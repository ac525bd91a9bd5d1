"""The adapter of a provider: it downloads a public price list, and reads it.

``fetch`` uses the network and understands nothing; ``parse`` understands and uses no network.
Files that a user downloaded take the place of ``fetch``, and tests need no network.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NoReturn, Protocol, runtime_checkable

from advisor.answer import Recorded
from advisor.catalogue.offer_columns import Provenance
from advisor.catalogue.rows import Listed, ListedOffer
from advisor.collectors import bounded
from advisor.errors import CatalogueError


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile(Recorded):
    """A file as it was downloaded or given."""

    said: ClassVar[Sequence[str]] = ("name", "url", "sha256", "retrieved_at")

    name: str  # what the adapter calls it; unique among its files
    path: Path
    url: str  # ``""`` where a user gave the file
    # ISO 8601 in UTC; ``""`` where nobody knows. A file's own date of change says nothing: a copy
    # is always new.
    retrieved_at: str
    sha256: str
    # etag, last_modified: what the server called this version; ``""`` where it did not
    etag: str = ""
    last_modified: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """What to send so that the server answers only if the file has changed."""
        both = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in both.items() if value}


class FetchSession(Protocol):
    """How an adapter downloads: retries, time and size limits are the session's business."""

    def get(self, url: str, *, name: str, max_bytes: int) -> RawFile:
        """Download a file, or return the copy from before if it has not changed.

        Raises CatalogueError if it cannot be had.
        """
        ...


@runtime_checkable
class Adapter(Protocol):
    """A source of types and prices."""

    name: str  # what the user calls it; also the folder of its files
    source: str  # what stands with each price
    licence: str  # of the data; one that contains "unconfirmed" keeps the rows in own files

    @property
    def replaces(self) -> Sequence[str]:
        """What sources begin with whose prices are out of date once a region is read anew."""
        ...

    def fetch(self, session: FetchSession) -> Sequence[RawFile]:
        """Download what ``parse`` needs."""
        ...

    def owns(self, path: str) -> bool:
        """Tell whether a file of a user's folder is for this adapter, by its relative path."""
        ...

    def parse(self, files: Sequence[RawFile], as_of: str) -> Listed:
        """Read the files.

        Raises CatalogueError if a file is not what it should be; the error names the file and the
        place in it.

        ``as_of``: ISO date for prices whose file states none; ``""`` is unknown.
        """
        ...


def local_file(name: str, path: Path) -> RawFile:
    """Describe a file that a user gave."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return RawFile(name=name, path=path, url="", retrieved_at="", sha256=digest)


def provenance(
    adapter: Adapter, as_of: str, *, spot_status: str = "", listing: str = "offered"
) -> Provenance:
    """Say where an adapter's prices come from."""
    return Provenance(
        as_of=as_of,
        status="listed",
        spot_status=spot_status,
        listing=listing,
        source=adapter.source,
        licence=adapter.licence,
    )


def priced(
    adapter: Adapter, machine: ListedOffer, region: str, usd_per_h: Mapping[str, float],
    as_of: str, *, spot_status: str = "listed", listing: str = "offered", band: int | None = None,
) -> ListedOffer:  # fmt: skip
    """Return the prices of a machine in a region; ``usd_per_h`` by column of ``files.PRICES``.

    ``spot_status`` says how the spot price came about, where there is one.
    """
    spot = spot_status if "spot_usd_per_h" in usd_per_h else ""
    return replace(
        machine,
        region=region,
        spot_interruption_band=band,
        provenance=provenance(adapter, as_of, spot_status=spot, listing=listing),
        **usd_per_h,
    )


MAX_CONTENT_BYTES: Final = 512 << 20  # of one unpacked file that is read as a whole


@contextlib.contextmanager
def opened(file: RawFile) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked: AWS serves gzip without saying so.

    Raises CatalogueError if it cannot be read or is damaged.
    """
    try:
        with file.path.open("rb") as packed:
            is_gzip = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            if is_gzip:
                with gzip.GzipFile(fileobj=packed) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield packed
    except (OSError, EOFError, zlib.error) as error:
        raise CatalogueError(
            f"{file.name} cannot be read: {error}", hint="get the file again from its source"
        ) from error


def read_content(file: RawFile) -> bytes:
    """Read a whole file, unpacked.

    Raises CatalogueError if it cannot be read, or unpacks to more than ``MAX_CONTENT_BYTES``.
    """
    with opened(file) as stream:
        content = stream.read(MAX_CONTENT_BYTES + 1)
    if len(content) > MAX_CONTENT_BYTES:
        raise CatalogueError(
            f"{file.name} unpacks to more than {MAX_CONTENT_BYTES >> 20} MiB",
            hint="this is not a price list; get the file again from its source",
        )
    return content


def read_json(file: RawFile) -> Any:
    """Read a file as JSON.

    Raises CatalogueError if it is not JSON.
    """
    try:
        return bounded.parse_json(read_content(file))
    except (ValueError, RecursionError) as error:
        raise CatalogueError(
            f"{file.name} is not JSON: {error}", hint="get the file again from its source"
        ) from error


def price(file: RawFile, place: str, value: object) -> float:
    """Read a price: a finite number that is not negative; zero is left to the validators.

    Raises CatalogueError if it is no such number.
    """
    try:
        usd = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        fault(file, place, f"is {str(value)[:40]!r}, not a price")
    if not 0 <= usd < 1e9:
        fault(file, place, f"is {usd:g}, not a price")
    return usd


def fault(file: RawFile, place: str, what: str) -> NoReturn:
    """Raise the error that names the file and the place in it."""
    raise CatalogueError(
        f"{file.name}, {place}: {what}", hint="get the file again; if it stays so, report it"
    )
