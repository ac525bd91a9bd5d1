"""Peers asked as a user asks, each model by constants that were fitted without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.planners.links.peers import FirstMinutes, Peers
from advisor.predict.peers import FittedRate, PeerModel
from advisor.train.peer_rows import PeerRows
from advisor.validation.scores import Group, score

Floats = NDArray[np.float64]
Asked = TypeVar("Asked", Peers, FirstMinutes)


def answered(rows: PeerRows[Asked], fit: Callable[[PeerRows[Asked]], FittedRate]) -> Floats:
    """Return low, value and high of the samples/s of every row, shape (n, 3)."""
    found = np.empty((len(rows.samples_per_s), 3))
    for model in np.unique(rows.models).tolist():
        out = np.flatnonzero(rows.models == model)
        fitted = fit(rows.take(np.flatnonzero(rows.models != model)))
        asking = PeerModel(parts=fitted, minute=fitted)
        found[out] = asking.rates(rows.take(out).asked)
    return found


def by_model(
    rows: PeerRows[Asked], predicted: Floats, truth: Floats, bounds: tuple[Floats, Floats]
) -> list[Group]:
    """Score each model's rows."""
    low, high = bounds
    return [
        Group(
            group=str(name),
            scores=score(predicted[i], truth[i], low=low[i], high=high[i]),
        )
        for name in np.unique(rows.models)
        for i in [rows.models == name]
    ]
