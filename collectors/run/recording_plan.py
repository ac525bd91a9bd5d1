"""The plan of a recording, as it travels to the profiler's own process."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from advisor.collectors.format import noun


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """One recording to make; the fields are the settings of ``plan_recording``.

    It travels from the caller to the profiler's own process as JSON, through a file in memory that
    has no name: an argument could be read by every user of the machine, and is limited to 128 KiB.
    """

    run: str
    command: tuple[str, ...]
    attached: int | None = None  # a process that is watched: no command is started
    limit_s: float = 120.0  # from the first step; from the start where no step can come
    limit_steps: int | None = None  # exactly so many
    interval_s: float = 0.2
    continues: bool = False  # the script goes on without hooks, instead of being stopped
    # options, host: kept in the recording: what was asked for, and the machine
    options: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    progress_s: float = 0.0  # between progress lines on stderr; 0 for none
    progress_fd: int = -1  # where progress goes as JSON lines, -1 for nowhere
    patience_s: float = 5.0  # between asking the script to stop, SIGTERM and SIGKILL
    summary: Literal["none", "text", "json"] = "none"  # text on stderr, JSON on stdout
    # workers, bandwidth_bit_per_s: as how many ranks the command is run on this machine, and what
    # each one's link is limited to, each way, which needs root
    workers: int = 1
    bandwidth_bit_per_s: float | None = None
    reader: Literal["proc", "psutil"] = "proc"  # how processes are read
    working_set: bool = False  # how much memory is touched, too; see ``TouchedMemory``
    rehearsal: dict[str, Any] = field(default_factory=dict)  # see ``REHEARSAL``
    # the notebook whose code is the command's second word, in a folder that goes at the end; or ""
    notebook: str = ""

    def open_copy(self) -> int:
        """Return a descriptor, inherited by whoever is executed, that ``from_file`` reads.

        Raises OSError if there is no memory for it.
        """
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("advisor-plan", 0)
        else:  # not on macOS
            import tempfile

            fd, path = tempfile.mkstemp(prefix="advisor-plan")
            os.unlink(path)
            os.set_inheritable(fd, True)
        try:
            rest = json.dumps(asdict(self)).encode()
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
            return noun(cls, json.load(file))
