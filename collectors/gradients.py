"""Squared gradient norms of one pass and of whole steps, from the sampled steps of all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mode
from typing import Any, Final

from advisor.collectors.events import Events

FEWEST: Final = 8  # steps; fewer say nothing of a mean


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorms:
    """Norms of mean gradients at two batch sizes, step by step.

    A loss scale is in both: their ratio is what they tell.

    Attributes
    ----------
    small_batch, large_batch : float
        Of one pass of one rank, and of a step over all of them. [samples]
    small_norm2, large_norm2 : tuple of float
        |G|^2 of each sampled step, one of each.
    """

    small_batch: float
    large_batch: float
    small_norm2: tuple[float, ...]
    large_norm2: tuple[float, ...]


def gradient_norms(
    processes: Sequence[Events], *, samples: float | None, passes: int, ranks: int
) -> GradientNorms | None:
    """Return the norms that the hooks took; None where a step has one gradient norm only.

    Parameters
    ----------
    passes : int
        Micro-batches of a step of one rank, as loader and backward passes say together: passes
        for several losses of one batch are no parts of one gradient.
    """
    if not samples or passes * ranks < 2:
        return None
    facts = [fact for one in processes for fact in one.facts.get("gradient_norms", [])]
    rows = [row for fact in facts for row in fact.get("rows", ())]
    if not rows or mode(row[0] for row in rows) != passes:
        return None
    kept = [row for row in rows if row[0] == passes and all(map(_is_norm, row[1:]))]
    if len(kept) < FEWEST:
        return None
    return GradientNorms(
        small_batch=samples / (passes * ranks),
        large_batch=samples,
        small_norm2=tuple(float(row[1]) for row in kept),
        # Passes add up: the mean gradient is a share of what was in ``.grad``.
        large_norm2=tuple(float(row[2]) / passes**2 for row in kept),
    )


def _is_norm(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0
