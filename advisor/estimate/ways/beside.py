"""Ways of training that stand beside the layouts: each takes the rows that it does better.

A way of this kind is one file with an object of the protocol ``BesideWay``, and one line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Answer
from advisor.ask import LayoutRequest
from advisor.estimate.case import StepCase
from advisor.estimate.time_columns import TimeColumns, way_code
from advisor.estimate.ways.swapping import LAYER_SWAPPING
from advisor.machines import Cluster
from advisor.planners.core import PlanningError
from advisor.planners.layouts import SearchSpace

if TYPE_CHECKING:
    from advisor.estimate.unlike.groups import OnGroups

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class BesideWay(Protocol):
    """A way of training that takes rows from the layouts where it is better, or alone fits."""

    @property
    def name(self) -> str:
        """What it is called in answers."""
        ...

    def applies(self, case: StepCase) -> bool:
        """Whether the question admits it."""
        ...

    def columns(self, case: StepCase, columns: TimeColumns) -> TimeColumns:
        """Return the best of the other ways' rows and its own."""
        ...

    def could_win(self, case: StepCase, columns: TimeColumns) -> Booleans:
        """Return the rows that it may do better, or alone."""
        ...

    def bound(self, case: StepCase, type_index: Integers, count: Integers) -> Floats:
        """Return a bound from below on its step; inf where it can have none [s]."""
        ...

    def words(self, columns: TimeColumns, row: int) -> tuple[str, ...]:
        """Return what a reader must know of one of its rows."""
        ...

    def without(self, space: SearchSpace) -> SearchSpace:
        """Return the layouts to search, this way left out."""
        ...

    def is_asked(self, asked: LayoutRequest) -> bool:
        """Whether it was asked for by its own flag."""
        ...

    def stands_beside(self, cluster: Cluster, asked: LayoutRequest) -> bool:
        """Whether ``plan`` shows it beside the layouts."""
        ...

    def choice(self, case: OnGroups, asked: LayoutRequest) -> Answer:
        """Return it on all devices of a cluster; PlanningError where it cannot run."""
        ...

    def instead(self, problem: PlanningError, found: Answer) -> PlanningError:
        """Return why nothing else runs, with what this way would take."""
        ...


BESIDE_WAYS: Final[tuple[BesideWay, ...]] = (LAYER_SWAPPING,)
_CODES: Final = {way_code(way.name): way for way in BESIDE_WAYS}


def is_beside(columns: TimeColumns) -> Booleans:
    """Return the rows that one of these ways has: no run that was seen trained so."""
    return np.isin(columns.way, list(_CODES))


def layouts_alone(space: SearchSpace) -> SearchSpace:
    """Return the layouts to search without the ways beside them."""
    for way in BESIDE_WAYS:
        space = way.without(space)
    return space


def beside_words(columns: TimeColumns, row: int) -> tuple[str, ...]:
    """Return what is said of a row that one of these ways has; nothing of the others."""
    way = _CODES.get(int(columns.way[row]))
    return () if way is None else way.words(columns, row)
