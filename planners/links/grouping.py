"""Grouping machines so that slow links fall between groups (Zorse, step 1).

| here            | Zorse        | meaning                                                     |
|-----------------|--------------|-------------------------------------------------------------|
| ``weights``     | edge weights | symmetric, bandwidth between two vertices [bytes/s]         |
| ``minimum_cut`` | Stoer-Wagner | the cheapest way to fall into two parts                     |
| ``splits``      | SPLIT        | k parts: cut, k-1 times, the part that is cheapest to cut   |

A minimum k-cut is NP-hard for free k; SPLIT costs at most 2 - 2/k times the best cut (Saran and
Vazirani 1995). Minimum cut: Stoer and Wagner, "A simple min-cut algorithm" (J. ACM 1997).
"""

from __future__ import annotations

import numpy as np

from advisor.planners.core import Floats

Part = tuple[int, ...]


def minimum_cut(weights: Floats) -> tuple[float, Part]:
    """Return the cheapest cut of a graph into two parts, and one of the parts.

    ``weights``: (n, n); the diagonal is ignored.

    Raises ValueError if there are fewer than two vertices or the weights are not symmetric.

    Returns
    -------
    weight : float
        Sum of the weights that are cut.
    part : tuple of int
        Vertices on the side that does not hold vertex 0.

    Examples
    --------
    >>> minimum_cut(np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0.0]]))
    (2.0, (2,))
    """
    w = np.array(weights, float)
    if w.shape[0] < 2 or w.shape != w.T.shape or not np.allclose(w, w.T):
        raise ValueError(f"weights must be symmetric over two or more vertices: {w.shape}")
    np.fill_diagonal(w, 0.0)
    merged: list[list[int]] = [[i] for i in range(w.shape[0])]
    alive = list(range(w.shape[0]))
    best = float("inf")
    part: Part = ()
    while len(alive) > 1:
        before_last, last, weight = _cut_of_the_phase(w, alive)
        if weight < best:
            best, part = weight, tuple(sorted(merged[last]))
        w[before_last] += w[last]
        w[:, before_last] += w[:, last]
        w[before_last, before_last] = 0.0
        merged[before_last] += merged[last]
        alive.remove(last)
    if 0 in part:
        part = tuple(i for i in range(w.shape[0]) if i not in part)
    return best, part


def _cut_of_the_phase(w: Floats, alive: list[int]) -> tuple[int, int, float]:
    """Return the last two vertices of a maximum-adjacency order and the last one's weight."""
    attached = np.full(w.shape[0], -np.inf)
    attached[alive] = w[alive[0], alive]
    attached[alive[0]] = -np.inf
    before_last, last, weight = alive[0], alive[0], 0.0
    for _ in range(len(alive) - 1):
        chosen = int(np.argmax(attached))
        before_last, last, weight = last, chosen, float(attached[chosen])
        attached += w[chosen]
        attached[chosen] = -np.inf
    return before_last, last, weight


def split_partitions(weights: Floats) -> list[list[Part]]:
    """Return the SPLIT partition into k parts for every k from 1 to the number of vertices.

    Parts are sorted by their first vertex; partition k+1 refines partition k.
    """
    vertices = np.asarray(weights).shape[0]
    parts: list[Part] = [tuple(range(vertices))]
    partitions = [list(parts)]
    cuts: dict[Part, tuple[float, Part]] = {}
    while len(parts) < vertices:
        for part in parts:
            if len(part) > 1 and part not in cuts:
                weight, inside = minimum_cut(np.asarray(weights)[np.ix_(part, part)])
                cuts[part] = weight, tuple(part[i] for i in inside)
        cheapest = min((p for p in parts if len(p) > 1), key=lambda p: (cuts[p][0], p))
        away = cuts[cheapest][1]
        rest = tuple(i for i in cheapest if i not in away)
        parts = sorted([p for p in parts if p != cheapest] + [away, rest])
        partitions.append(list(parts))
    return partitions
