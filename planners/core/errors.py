"""The one error the planners raise for what a user can cause."""

from __future__ import annotations


class PlanningError(Exception):
    """The job, the cluster or the constraints make no plan possible.

    Parameters
    ----------
    exit_code : int, default 1
        What the command line returns: 2 for a value that makes no sense, 3 where nothing
        satisfies the constraints.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code
