"""The one error the collectors raise for what a user can cause."""

from __future__ import annotations


class RecordingError(Exception):
    """A command cannot be recorded, or a recording cannot be read.

    Parameters
    ----------
    exit_code : int, default 1
        What the command line returns: 2 for a value that makes no sense.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code
