"""Download one file over HTTP so that what has come is not asked for again.

A cut transfer leaves its part beside the target; the next try, or the next call, asks the server
for the rest (``Range``, guarded by the file's tag). A server that sends all of it again is obeyed.
Nothing takes the target's place before its checksum holds.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from advisor.catalogue.update.download import OPENER, Clock, DownloadLimits, SystemClock
from advisor.collectors import atomic
from advisor.errors import ModelError

_BLOCK: Final = 1 << 16
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_SUCH_RANGE: Final = 416
_HINT: Final = "try again: what has come is kept; or name a copy with --from FOLDER or URL"


class _CutError(Exception):
    """A transfer that may be gone on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """How files are downloaded.

    Attributes
    ----------
    limits : DownloadLimits
        Tries, waits and silence of each file.
    clock : Clock
    max_bytes : int
        Longest file that is taken.
    """

    limits: DownloadLimits = field(default_factory=DownloadLimits)
    clock: Clock = field(default_factory=SystemClock)
    max_bytes: int = 64 << 20

    def get(self, url: str, target: Path, sha256: str | None) -> str:
        """Download a file, unless it is there with its checksum; returns its SHA-256.

        Parameters
        ----------
        url : str
            ``http://`` or ``https://``.
        target : Path
            Its folder is made.
        sha256 : str or None
            What the file must have; None where nobody has seen it yet.

        Raises
        ------
        ModelError
            If it cannot be had, or is not the expected file.
        OSError
            If it cannot be written.
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
                self.clock.sleep(self.limits.first_wait_s * 2 ** (attempt - 1))
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
