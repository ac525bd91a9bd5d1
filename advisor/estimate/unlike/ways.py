"""The ways of training on groups of unlike machines, which ``plan`` and ``recommend`` ask.

A new way is one file with a function ``OnGroups -> Answer`` that raises ``PlanningError`` where
it does not apply, with what is said of its choices, and one line here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from advisor.answer import Answer
from advisor.estimate.knowledge.laws import ModelOn
from advisor.estimate.unlike.groups import OnGroups
from advisor.estimate.ways import even, stages, uneven
from advisor.machines import Cluster
from advisor.planners.core import PlanningError


@dataclass(frozen=True, slots=True)
class UnlikeWay:
    """A way of training on unlike machines: what it is called, its planner, and what it says.

    ``words`` makes one phrase of a choice and of what its groups are called; None of a way that no
    released framework runs, whose details have its split in words.
    """

    name: str
    choose: Callable[[OnGroups], Answer]
    words: Callable[[Answer, Mapping[str, str]], str] | None = None


WAYS: Final = (
    UnlikeWay(even.NAME, even.equal_shares, even.words),
    UnlikeWay(stages.NAME, stages.pipeline_over_groups, stages.words),
    UnlikeWay(uneven.NAME, uneven.uneven_batches, uneven.words),
    UnlikeWay(uneven.UNEVEN_STATE_NAME, uneven.uneven_state),
    UnlikeWay(stages.ASYMMETRIC_NAME, stages.asymmetric_stages),
)


def unlike_choices(
    model: ModelOn, cluster: Cluster, *, global_batch: int, coverage: float = 0.9,
    command: tuple[str, ...] = (), ways: tuple[UnlikeWay, ...] = WAYS,
) -> tuple[list[Answer], dict[str, str]]:  # fmt: skip
    """Plan every way of training a model on all machines of a cluster together.

    Parameters
    ----------
    model : ModelOn
        ``laws.model_on(job, cluster, ...)``.
    global_batch : int
        Samples of a step over all devices.
    coverage : float
        Probability that an interval holds the true value.
    command : tuple of str
        The recorded command line; empty for a described model.
    ways : tuple of UnlikeWay
        All that there are by default.

    Returns
    -------
    choices : list of Answer
        In the ways' order; those without commands are run by no released framework.
    left_out : dict of str to str
        Ways that do not apply or fit, and why.
    """
    case = OnGroups(
        model=model, cluster=cluster, global_batch=global_batch, coverage=coverage, command=command
    )
    return tried({way.name: partial(way.choose, case) for way in ways})


def best_released(
    model: ModelOn, cluster: Cluster, *, global_batch: int, most_s: float = math.inf
) -> Answer | None:
    """Return the fastest way that a released framework runs: what ``plan`` answers; None: none.

    ``most_s``: a step above which the answer is of no matter: slower ways may be left out [s].
    """
    case = OnGroups(
        model=model, cluster=cluster, global_batch=global_batch, only_released=True, most_s=most_s
    )
    # The dearest search comes last: it need not look for what the others beat.
    ways = sorted((way for way in WAYS if way.words), key=lambda way: way.name == stages.NAME)
    best: Answer | None = None
    for way in ways:
        found, _ = tried({way.name: partial(way.choose, case)})
        runs = [c for c in (best, *found) if c is not None and c.commands]
        best = min(runs, key=_worth, default=None)
        if best is not None:
            case = replace(case, most_s=min(most_s, _worth(best) / _LEAST_GAIN))
    return best


def best_unreleased(model: ModelOn, cluster: Cluster, *, global_batch: int) -> Answer | None:
    """Return the fastest way that no released framework runs; None where none applies."""
    case = OnGroups(model=model, cluster=cluster, global_batch=global_batch)
    found, _ = tried({way.name: partial(way.choose, case) for way in WAYS if way.words is None})
    return min(found, key=_worth, default=None)


def _worth(choice: Answer) -> float:
    return choice.step_time_s.value * handicap(choice)


# What an uneven split must gain over equal shares to be worth its trouble.
_LEAST_GAIN: Final = 1.005


def handicap(choice: Answer) -> float:
    """Return by what a way's time or cost is multiplied where ways are compared."""
    is_uneven = choice.name != even.NAME and any(way.name == choice.name for way in WAYS)
    return _LEAST_GAIN if is_uneven else 1.0


def words_of(choice: Answer, names: Mapping[str, str]) -> str:
    """Return what a way says of its choice, its groups by ``names``."""
    (said,) = (way.words for way in WAYS if way.name == choice.name)
    return "" if said is None else said(choice, names)


def tried(ways: Mapping[str, Callable[[], Answer]]) -> tuple[list[Answer], dict[str, str]]:
    """Return what the ways find, and of the others why they find nothing."""
    found: list[Answer] = []
    left_out: dict[str, str] = {}
    for name, way in ways.items():
        try:
            found.append(way())
        except PlanningError as error:
            left_out[name] = f"{error}; {error.hint}" if error.hint else str(error)
    return found, left_out
