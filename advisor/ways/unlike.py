"""The ways of training on groups of unlike machines, which ``plan`` and ``recommend`` ask.

A new way is one file with a function ``OnGroups -> Choice`` that raises ``PlanningError`` where it
does not apply, with what is said of its choices, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from advisor.machines.cluster import NamedCluster
from advisor.planners.core.errors import PlanningError
from advisor.ways import (
    asymmetric_stages,
    pipeline_over_groups,
    uneven_batches,
    uneven_state,
)
from advisor.ways.answer import Choice
from advisor.ways.model_on import ModelOn
from advisor.ways.on_groups import OnGroups


@dataclass(frozen=True, slots=True)
class UnlikeWay:
    """A way of training on unlike machines: what it is called, its planner, and what it says.

    ``words`` makes one phrase of a choice and of what its groups are called; None of a way that no
    released framework runs.
    """

    name: str
    choose: Callable[[OnGroups], Choice]
    words: Callable[[Choice, Mapping[str, str]], str] | None = None


WAYS: Final = (
    UnlikeWay(
        pipeline_over_groups.NAME,
        pipeline_over_groups.pipeline_over_groups,
        pipeline_over_groups.words,
    ),
    UnlikeWay(uneven_batches.NAME, uneven_batches.uneven_batches, uneven_batches.words),
    UnlikeWay(uneven_state.NAME, uneven_state.uneven_state),
    UnlikeWay(asymmetric_stages.NAME, asymmetric_stages.asymmetric_stages),
)


def unlike_choices(
    model: ModelOn,
    cluster: NamedCluster,
    *,
    global_batch: int,
    coverage: float = 0.9,
    command: tuple[str, ...] = (),
    ways: tuple[UnlikeWay, ...] = WAYS,
) -> tuple[list[Choice], dict[str, str]]:
    """Plan every way of training a model on all machines of a cluster together.

    Parameters
    ----------
    model : ModelOn
        ``unit_models.model_on(job, cluster.groups, ...)``.
    cluster : NamedCluster
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
    choices : list of Choice
        In the ways' order; those without commands are run by no released framework.
    left_out : dict of str to str
        Ways that do not apply or fit, and why.
    """
    case = OnGroups(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        coverage=coverage,
        command=command,
    )
    return tried({way.name: partial(way.choose, case) for way in ways})


def best_released(model: ModelOn, cluster: NamedCluster, *, global_batch: int) -> Choice | None:
    """Return the fastest way that a released framework runs: what ``plan`` answers; None: none."""
    case = OnGroups(model=model, cluster=cluster, global_batch=global_batch, only_released=True)
    found, _ = tried({way.name: partial(way.choose, case) for way in WAYS if way.words})
    return min((c for c in found if c.commands), key=lambda c: c.step_time_s.value, default=None)


def words_of(choice: Choice, names: Mapping[str, str]) -> str:
    """Return what a way says of its choice, its groups by ``names``."""
    (said,) = (way.words for way in WAYS if way.name == choice.name)
    return "" if said is None else said(choice, names)


def tried(ways: Mapping[str, Callable[[], Choice]]) -> tuple[list[Choice], dict[str, str]]:
    """Return what the ways find, and of the others why they find nothing."""
    found: list[Choice] = []
    left_out: dict[str, str] = {}
    for name, way in ways.items():
        try:
            found.append(way())
        except PlanningError as error:
            left_out[name] = f"{error}; {error.hint}" if error.hint else str(error)
    return found, left_out
