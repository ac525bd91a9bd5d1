"""What answers are computed from, so that a server notices what is replaced while it runs.

``advisor catalogue update``, a new file of rules and ``advisor train`` replace whole files, which
workers read once. Where one differs, workers start afresh and kept answers are not given again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from advisor import data
from advisor.ask import Question
from advisor.catalogue import named_folder
from advisor.collectors.atomic import config_folder
from advisor.collectors.derive import models_version
from advisor.collectors.errors import RecordingError
from advisor.errors import AdvisorError
from advisor.ui.desk import in_thread

# A new price waits no longer; a look takes a millisecond, at a team's URL of models a request. [s]
_BETWEEN_S: Final = 10.0


class Sources:
    """Catalogue, rules and models of a question: ``state`` differs where one was replaced."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._looked = time.monotonic()
        self.state = ""
        self.state = self._read()

    async def look(self) -> None:
        """Look whether something was replaced, unless that was done a moment ago."""
        if time.monotonic() - self._looked >= _BETWEEN_S:
            self._looked = time.monotonic()
            self.state = await in_thread(self._read)

    def _read(self) -> str:
        """Return the state now; that of before where something cannot be read."""
        place = data.models_place()
        try:
            files = sorted((str(path), *_version(path)) for path in self._files())
            return f"{files}{models_version(place) if '://' in place else ''}"
        except (AdvisorError, RecordingError, OSError):
            return self.state

    def _files(self) -> Iterator[Path]:
        asked = self._question
        yield from named_folder(str(asked.catalogue or "current")).iterdir()
        yield Path(asked.overrides or config_folder() / "overrides.csv")
        if "://" not in data.models_place():
            yield from Path(data.models_place()).glob("*/*")


def _version(path: Path) -> tuple[int, int]:
    found = path.stat() if path.exists() else None
    return (0, 0) if found is None else (found.st_mtime_ns, found.st_size)
