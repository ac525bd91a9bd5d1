"""The plan of a recording: travels from the caller to the profiler's own process as JSON.

It goes through a file in memory that has no name: an argument could be read by every user of the
machine, and is limited to 128 KiB.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """One recording to make; the fields are the settings of ``runner.plan``.

    Attributes
    ----------
    command : tuple of str
        Empty when attached.
    limit_s : float
        From the first step; from the start where no step can come.
    options, host : dict
        Kept in the recording: what was asked for, and the machine.
    progress_fd : int
        Where progress goes as JSON lines, -1 for nowhere.
    """

    run: str
    command: tuple[str, ...]
    attached: int | None = None
    limit_s: float = 120.0
    limit_steps: int | None = None
    interval_s: float = 0.2
    continues: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    progress_s: float = 5.0
    progress_fd: int = -1
    patience_s: float = 5.0
    summary: Literal["none", "text", "json"] = "none"
    workers: int = 1
    bandwidth_bit_per_s: float | None = None
    reader: Literal["proc", "psutil"] = "proc"
    working_set: bool = False

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self))

    def open_copy(self) -> int:
        """Return a descriptor, inherited by whoever is executed, that ``from_file`` reads.

        Raises
        ------
        OSError
            If there is no memory for it.
        """
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("advisor-plan", 0)
        else:  # not on macOS
            import tempfile

            fd, path = tempfile.mkstemp(prefix="advisor-plan")
            os.unlink(path)
            os.set_inheritable(fd, True)
        try:
            rest = self.to_json().encode()
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.lseek(fd, 0, os.SEEK_SET)
        except OSError:
            os.close(fd)
            raise
        return fd

    @classmethod
    def from_file(cls, fd: int) -> RecordingPlan:
        """Return the plan that ``open_copy`` left, and close it: the command does not get it."""
        with open(fd, encoding="utf-8") as file:
            return cls.from_json(file.read())

    @classmethod
    def from_json(cls, text: str) -> RecordingPlan:
        """Return the plan that ``to_json`` wrote."""
        values = json.loads(text)
        values["command"] = tuple(values["command"])
        return cls(**values)
