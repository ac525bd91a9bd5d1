"""``--blind``: every scored group asked of constants that were fitted without it.

A protocol says which rows of all fitted tables each of its groups is (``Refit.hidden``), and how
its rows are asked of given constants (``Refit.ask``); the fits are ``lab.fit.without``. The
answers of a group are the same whatever its rows measured, which ``tests/test_blind.py`` tries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue
from advisor.estimate.predictor import Predictor
from advisor.lab.fit.without import FittedTables, Hidden, Known
from advisor.lab.score.harness import Answers, Blinded, Questions

Rows = NDArray[np.intp]
BY_HAND: Final = "the equations, their classes and the priors of their constants: chosen by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """How a protocol is asked of constants without the scored group."""

    # of every row: what its group is in the tables that constants are fitted on
    hidden: Callable[[Questions], Sequence[Hidden]]
    # answers to some of the rows, in their order, by what is known without their group
    ask: Callable[[Questions, Rows, Known], Answers]
    # what had the rows in sight all the same: chosen by people, no command fits it
    still_seen: Sequence[str] = (BY_HAND,)

    def __call__(self, rows: Questions, data: Path) -> Blinded:
        """Answer every row without its group."""
        tables, hidden = FittedTables(folder=data), self.hidden(rows)
        found = np.full((3, rows.truth.size), np.nan)
        changed: dict[str, None] = {}
        for one in dict.fromkeys(hidden):
            here = np.flatnonzero([other == one for other in hidden])
            known = tables.without(one)
            said = self.ask(rows, here, known)
            found[0, here] = said.value
            if said.low is not None and said.high is not None:
                found[1:, here] = said.low, said.high
            changed |= dict.fromkeys(known.changed)
        value, low, high = found
        return Blinded(
            answers=Answers(value=value, low=low, high=high),
            changed=tuple(changed),
            still_seen=self.still_seen,
        )


def predictor_with(known: Known) -> Predictor:
    """Return the product with the constants that are known, and nothing learned besides."""
    return Predictor(Catalogue.load(with_overrides=False), constants=known.constants, learned=None)


def spread(said: Sequence[tuple[float, float]]) -> Answers:
    """Return steps and the deviations of their logarithms as answers."""
    value, log_sd = np.array(said, float).reshape(-1, 2).T
    return Answers.spread(value, log_sd)
