"""Download over HTTP with limits: time, size, tries, redirects; copies from before are reused.

A server may be slow, refuse, answer with an error page, cut the answer short, redirect in a
circle or send a gigabyte for a kilobyte. Each costs a bounded time and ends in one error.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.client
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from advisor.catalogue.providers.base import RawFile
from advisor.collectors import atomic, bounded
from advisor.errors import CatalogueError

_INDEX: Final = "index.json"


class RawStore:
    """The folder of downloads, each with its address, day and checksum.

    ``raw/<source>/<name>`` beside an ``index.json``. A copy is only used again if its checksum
    still holds; a file that is being written has another name, so that no half of one is found.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, source: str, name: str, url: str) -> RawFile | None:
        """Return the copy from before, if it is of this address and unharmed."""
        entry = self._index(source).get(name)
        try:
            kept = self._file(source, name, entry) if isinstance(entry, dict) else None
        except TypeError:
            return None
        if kept is None or kept.url != url or _sha256(kept.path) != kept.sha256:
            return None
        return kept

    @contextlib.contextmanager
    def writing(self, source: str, name: str) -> Iterator[IO[bytes]]:
        """Open a file to write; it takes its place when the block ends without an error."""
        path = self._path(source, name)
        try:
            with atomic.writing(path) as file:
                yield file
        except OSError as error:
            raise CatalogueError(
                f"cannot write {path}: {error.strerror or error}",
                hint="free some space, or set XDG_CACHE_HOME to another folder",
            ) from error

    def keep(self, source: str, name: str, **entry: str) -> RawFile:
        """Enter a file that was written into the index."""
        kept = self._file(source, name, entry)
        content = json.dumps({**self._index(source), name: entry}, indent=1, sort_keys=True)
        atomic.write_bytes(self._path(source, _INDEX), content.encode())
        return kept

    def _file(self, source: str, name: str, entry: Mapping[str, str]) -> RawFile:
        return RawFile(name=name, path=self._path(source, name), **entry)

    def _index(self, source: str) -> dict[str, Any]:
        return bounded.read_object(self._path(source, _INDEX))

    def _path(self, source: str, name: str) -> Path:
        """Return where a file lies; names come from adapters, perhaps from other packages."""
        for part in (source, name):
            if not part or part.startswith(".") or set(part) & set("/\\\0"):
                raise CatalogueError(
                    f"{part!r} is not a name for a downloaded file",
                    hint="report it to its authors",
                )
        return self._folder / source / name


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


_BLOCK: Final = 1 << 16
_MAX_REDIRECTS: Final = 5
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """What a download may take."""

    tries: int = 4
    # before the second try; doubled by each further one, with some chance in it
    first_wait_s: float = 1.0
    silence_s: float = 20.0  # longest wait for the server to send anything
    file_s: float = 300.0  # longest time for one file, all tries and waits together


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a download is; ``total_bytes`` is None where the server does not say."""

    source: str
    name: str
    done_bytes: int
    total_bytes: int | None


class _TransientError(Exception):
    """A failure that may be gone with the next try; ``wait_s`` is what the server asked for."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(slots=True, kw_only=True)
class HttpSession:
    """Downloads of one source, each kept in the raw store with its day and checksum."""

    source: str
    store: RawStore
    limits: DownloadLimits = field(default_factory=DownloadLimits)
    # where files are taken from instead: ``https://host/path`` becomes ``MIRROR/host/path``
    mirror: str = ""
    # time and waiting, of which tests have their own
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    on_progress: Callable[[Progress], None] | None = None

    def get(self, url: str, *, name: str, max_bytes: int) -> RawFile:
        """Download a file, or return the copy from before if it has not changed.

        Raises CatalogueError if it cannot be had within the limits.
        """
        try:
            return self._get(url, name, max_bytes)
        except CatalogueError as error:
            if not self.mirror:
                raise
            asked = self._target(url)
            raise CatalogueError(
                str(error).replace(url, asked) if asked not in str(error) else str(error),
                hint=f"have the mirror serve it there, as {url} does, or leave --mirror and "
                "ADVISOR_CATALOGUE_MIRROR out",
            ) from error

    def _target(self, url: str) -> str:
        """Return where a file is asked for: its own address, or the mirror's."""
        return f"{self.mirror.rstrip('/')}/{url.split('://', 1)[1]}" if self.mirror else url

    def _get(self, url: str, name: str, max_bytes: int) -> RawFile:
        deadline = self.now() + self.limits.file_s
        for attempt in range(1, self.limits.tries + 1):
            try:
                return self._try(url, name, max_bytes, deadline)
            except _TransientError as failure:
                wait = failure.wait_s
                if wait is None:
                    # Full jitter: many clients that failed together do not come back together.
                    wait = self.limits.first_wait_s * 2 ** (attempt - 1) * random.uniform(0.5, 1)
                is_last = attempt == self.limits.tries
                if is_last or self.now() + wait > deadline:
                    raise _gone(url, f"{failure} ({attempt} tries)") from failure
                self.sleep(wait)
        raise AssertionError("unreachable: the last try returns or raises")

    def _try(self, url: str, name: str, max_bytes: int, deadline: float) -> RawFile:
        known = self.store.find(self.source, name, url)
        request = self._request(url, known.conditions if known else {})
        try:
            with OPENER.open(request, timeout=self.limits.silence_s) as answer:
                return self._save(answer, url, name, max_bytes, deadline)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 304 and known is not None:
                    return self._keep(name, url, known.sha256, known.etag, known.last_modified)
                _raise_status(error, url)
        except urllib.error.URLError as error:
            raise _TransientError(f"cannot be reached: {error.reason}") from error
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise _TransientError(f"broke off: {error or type(error).__name__}") from error

    def _request(self, url: str, headers: dict[str, str]) -> urllib.request.Request:
        target = self._target(url)
        scheme = urllib.parse.urlsplit(target).scheme
        if scheme not in ("http", "https"):
            raise _gone(target, f"has the scheme {scheme!r}")
        own = {"User-Agent": "cloud-config-advisor", "Accept-Encoding": "gzip"}
        return urllib.request.Request(target, headers={**own, **headers})

    def _save(self, answer: Any, url: str, name: str, max_bytes: int, deadline: float) -> RawFile:
        content_type = answer.headers.get("Content-Type", "")
        if content_type.startswith("text/html"):
            raise _gone(url, "answers with a web page, not with data (a login or a proxy?)")
        stated = answer.headers.get("Content-Length", "")
        total = int(stated) if stated.isdigit() else None
        if total is not None and total > max_bytes:
            raise _gone(url, f"has {total:,} bytes, more than the {max_bytes:,} allowed")
        body = _Body(answer, answer.headers.get("Content-Encoding", ""))
        digest = hashlib.sha256()
        with self.store.writing(self.source, name) as file:
            while block := self._next(body, url, max_bytes, deadline):
                digest.update(block)
                file.write(block)
                if self.on_progress is not None:
                    done = Progress(
                        source=self.source, name=name, done_bytes=body.received, total_bytes=total
                    )
                    self.on_progress(done)
            if total is not None and body.received != total:
                raise _TransientError(f"was cut short: {body.received:,} of {total:,} bytes")
            if not body.is_complete:
                raise _TransientError("was cut short inside its compression")
        version = (answer.headers.get(one, "") for one in ("ETag", "Last-Modified"))
        return self._keep(name, url, digest.hexdigest(), *version)

    def _keep(self, name: str, url: str, sha256: str, etag: str, last_modified: str) -> RawFile:
        """Enter a file, or one that the server says is still current: it is as of now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return self.store.keep(
            self.source, name, url=url, sha256=sha256, retrieved_at=now, etag=etag,
            last_modified=last_modified,
        )  # fmt: skip

    def _next(self, body: _Body, url: str, max_bytes: int, deadline: float) -> bytes:
        if self.now() > deadline:
            raise _gone(url, f"took longer than {self.limits.file_s:g} s")
        block = body.read()
        if body.unpacked > max_bytes:
            raise _gone(url, f"unpacks to more than the {max_bytes:,} bytes allowed")
        return block


class _Body:
    """The bytes of an answer, unpacked block by block so that no bomb unpacks at once."""

    def __init__(self, answer: http.client.HTTPResponse, encoding: str) -> None:
        self._answer = answer
        is_gzip = encoding.lower() in ("gzip", "x-gzip")
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if is_gzip else None
        self.received = 0
        self.unpacked = 0

    @property
    def is_complete(self) -> bool:
        """The compressed stream has ended."""
        return self._unpacker is None or self._unpacker.eof

    def read(self) -> bytes:
        """Return the next block, empty at the end."""
        while True:
            block, is_end = self._block()
            self.unpacked += len(block)
            if block or is_end:
                return block

    def _block(self) -> tuple[bytes, bool]:
        if self._unpacker is None:
            raw = self._receive()
            return raw, not raw
        packed = self._unpacker.unconsumed_tail or self._receive()
        try:
            block = self._unpacker.decompress(packed, _BLOCK * 16)
        except zlib.error as error:
            raise _TransientError(f"is damaged: {error}") from error
        return block, not packed or self._unpacker.eof

    def _receive(self) -> bytes:
        raw = self._answer.read1(_BLOCK)  # what has come: a slow server is noticed
        self.received += len(raw)
        return raw


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a few redirects, never from https to http."""

    max_redirections = _MAX_REDIRECTS
    max_repeats = 2

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise _gone(req.full_url, f"redirects to the unprotected {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


OPENER: Final = urllib.request.build_opener(_Redirects)


def _raise_status(error: urllib.error.HTTPError, url: str) -> NoReturn:
    """Raise what a status means; a redirect that got here was one too many."""
    if error.code in _TRY_AGAIN:
        wait = _wait_s(error.headers.get("Retry-After", ""))
        raise _TransientError(f"answers {error.code} {error.reason}", wait) from error
    if 300 <= error.code < 400:
        raise _gone(url, "redirects in a circle") from error
    raise _gone(url, f"answers {error.code} {error.reason}") from error


def _wait_s(text: str) -> float | None:
    """Read ``Retry-After``: seconds, or a date."""
    if text.strip().isdigit():
        return float(text)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max((until - datetime.now(UTC)).total_seconds(), 0.0) if until.tzinfo else None


def _gone(url: str, what: str) -> CatalogueError:
    return CatalogueError(
        f"{url} {what}",
        hint="try again later, or download it yourself: advisor catalogue update --from FOLDER",
    )
