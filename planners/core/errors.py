"""The one error the planners raise for what a user can cause.

Refusing amounts that make no sense, where they enter the planners.

A NaN compares as neither more nor less, so that a search takes it for the fastest and a
simulation waits for it for ever. The nouns are checked when they are made; what is computed from
them need not be checked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike


class PlanningError(Exception):
    """The job, the cluster or the constraints make no plan possible.

    ``exit_code``: what the command line returns: 2 for a value that makes no sense, 3 where
    nothing satisfies the constraints; 1 by default.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)
        self.exit_code = exit_code


def refused(message: str, hint: str = "") -> PlanningError:
    """Return the error of a value that makes no sense: exit code 2."""
    return PlanningError(message, hint=hint, exit_code=2)


def impossible(message: str, hint: str = "") -> PlanningError:
    """Return the error of constraints that nothing satisfies: exit code 3."""
    return PlanningError(message, hint=hint, exit_code=3)


# Ten times beyond what anybody has trained is a slip of the finger.
LARGEST_DIMENSION: Final = 10**9
MOST_REPEATED: Final = 10_000  # layers and blocks


def check_positive(subject: str, **amounts: ArrayLike | None) -> None:
    """Refuse amounts that are not above zero; infinite ones are no limit at all.

    ``subject``: what they belong to, as it is called in the message; ``**amounts``: none is
    unknown, and not checked.

    Raises PlanningError naming the first such amount, with exit code 2.

    Examples
    --------
    >>> check_positive("link", bytes_per_s=0.0)
    Traceback (most recent call last):
    advisor.planners.core.errors.PlanningError: link: bytes_per_s of 0 is out of range
    give a positive number
    """
    for name, amount in amounts.items():
        # The usual case is one number: comparing it costs less than making it an array.
        if amount is None or (isinstance(amount, int | float) and amount > 0):
            continue
        _refuse(subject, name, amount, np.asarray(amount, float) > 0, "a positive number")


def check_not_negative(subject: str, **amounts: ArrayLike | None) -> None:
    """Refuse amounts below zero, and those that are no finite number.

    Raises PlanningError naming the first such amount, with exit code 2.
    """
    for name, amount in amounts.items():
        if amount is None or (isinstance(amount, int | float) and 0 <= amount < np.inf):
            continue
        values = np.asarray(amount, float)
        _refuse(subject, name, amount, (values >= 0) & (values < np.inf), "zero or more")


def check_counts(subject: str, **counts: float | None) -> None:
    """Refuse counts below one, and those that are no whole number.

    Raises PlanningError naming the first such count, with exit code 2.
    """
    for name, count in counts.items():
        if count is None:
            continue
        is_count = 1 <= count < np.inf and int(count) == count
        _refuse(subject, name, count, np.asarray(is_count), "a whole number from 1 on")


def check_dimensions(dimensions: Mapping[str, float]) -> None:
    """Refuse a model's dimensions that are not positive, or larger than anybody has trained.

    ``dimensions``: by name; counts of layers and blocks have a limit of their own.

    Raises PlanningError naming the first such dimension, with exit code 2.
    """
    for name, value in dimensions.items():
        if not value > 0:
            raise refused(f"{name} must be positive, got {value}", f"correct {name}")
        is_repeated = name.endswith("layers") or name.startswith(("blocks", "layers"))
        most = MOST_REPEATED if is_repeated else LARGEST_DIMENSION
        if value > most:
            raise refused(
                f"{name} of {value:.6g} is out of range, at most {most:,}", f"correct {name}"
            )


def _refuse(subject: str, name: str, amount: ArrayLike, is_good: ArrayLike, wanted: str) -> None:
    bad = np.atleast_1d(np.asarray(amount, float))[~np.atleast_1d(is_good)]
    if bad.size:
        raise refused(f"{subject}: {name} of {bad[0]:g} is out of range", f"give {wanted}")


MIB = 2**20
GIB = 2**30
GB = 10**9
TERA = 10**12
HOUR_S = 3600.0


def bytes_per_s(gbit_per_s: float) -> float:
    """Convert a network rate as sold [Gbit/s] to [bytes/s].

    >>> bytes_per_s(100.0)
    12500000000.0
    """
    return gbit_per_s * 1e9 / 8.0
