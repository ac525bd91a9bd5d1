"""Every error the advisor raises on purpose, and what the command line makes of it.

AdvisorError                 exit code 1
├── UsageError               2  a value on the command line makes no sense
├── DoesNotRunError          3  the job cannot run on the machines that were named
│   └── DoesNotFitError      3  it is memory that they lack
├── CatalogueError           1  the catalogue cannot be read or lacks what was asked for
├── RunError                 1  a recorded run is missing, empty, corrupt or lacks a fact
│   └── NotKnownError        3  it was recorded, but too little of it to answer from
└── ModelError               1  a trained model or its parameters cannot be read

The ground packages raise their own (``planners.PlanningError``, ``collectors.RecordingError``).
That no candidate satisfies the constraints is an answer, not an error: exit code 3.
All carry a ``hint`` (what to do) and an ``exit_code``: that is all the command line knows of them.
"""

from __future__ import annotations

import shlex
import sys

# A message that quotes what somebody wrote ends here, however much that was.
_MOST_CHARACTERS = 2000


class AdvisorError(Exception):
    """Base of the deliberate errors: the message says what is wrong, the hint what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        is_long = len(message) > _MOST_CHARACTERS
        super().__init__(message[:_MOST_CHARACTERS] + " ..." if is_long else message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # a traceback in Python shows it too


class UsageError(AdvisorError):
    """A value the user gave makes no sense."""

    exit_code = 2


class DoesNotRunError(AdvisorError):
    """The question was understood, and the answer is that the job cannot run on these machines."""

    exit_code = 3


class DoesNotFitError(DoesNotRunError):
    """It is memory that these machines lack: something may make the job fit."""


class CatalogueError(AdvisorError):
    """The catalogue cannot be read, or lacks what was asked for."""


class RunError(AdvisorError):
    """A recorded run is missing, empty, corrupt, or lacks a fact that was needed."""


class NotKnownError(RunError):
    """What was recorded is too uncertain to answer from: the hint says how to record on."""

    exit_code = 3


class ModelError(AdvisorError):
    """A trained model or its parameters cannot be read or do not fit the data."""


def pip_hint(*requirements: str) -> str:
    """Return the command that installs libraries where the advisor itself is installed.

    Pipx and ``uv tool`` give it an environment that no ``pip`` on ``PATH`` belongs to.
    """
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


class AbsentDataError(ModelError):
    """Published measurements that were asked for are not here: the hint says how to get them."""
