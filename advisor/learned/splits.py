"""Splits that keep siblings together: the only ones on offer.

A random split of runs puts repeats and sizes of one job on both sides and measures a look-up
(``reference/cloud_runs.md`` section 4). ``random`` here is the thesis's split, shown for
comparison and never used to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.errors import ModelError
from advisor.records import RunRecord

SplitName = Literal["random", "job", "instance", "both"]
SPLITS: Final[tuple[SplitName, ...]] = ("random", "job", "instance", "both")
Indices = NDArray[np.intp]


def group_folds(groups: ArrayLike, folds: int, seed: int = 0) -> Iterator[tuple[Indices, Indices]]:
    """Yield (train, test) with whole groups in each test fold, of about equal size.

    Raises ModelError if there is only one group: nothing can be left out.

    ``groups``: shape (n,); ``seed``: breaks ties between groups of one size.
    """
    labels, codes, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    if labels.size < 2:
        raise ModelError(
            f"only one group ({labels[0] if labels.size else 'none'}): nothing can be left out",
            hint="add runs of another job, or of another instance type",
        )
    shuffled = np.random.default_rng(seed).permutation(labels.size)
    loads = np.zeros(min(folds, labels.size))
    fold_of = np.empty(labels.size, int)
    for group in sorted(shuffled, key=lambda g: -counts[g]):
        fold_of[group] = int(np.argmin(loads))
        loads[fold_of[group]] += counts[group]
    assigned = fold_of[codes]
    for fold in range(loads.size):
        yield np.flatnonzero(assigned != fold), np.flatnonzero(assigned == fold)


def left_out(
    records: Sequence[RunRecord], split: SplitName, seed: int = 0
) -> Iterator[tuple[str, Indices, Indices]]:
    """Yield (what is left out, train, test) of one of the four splits.

    ``job`` leaves out each family in turn, ``instance`` each set of instance types, ``both`` each
    pair of the two: neither the family nor the instance type of a test run is in training.
    ``random`` draws 20 % of the runs five times without overlap. Raises ModelError if there is
    only one family or instance type to leave out.
    """
    families = np.array([record.job.family for record in records])
    instances = np.array([record.instance_key for record in records])
    if split == "random":
        order = np.random.default_rng(seed).permutation(len(records))
        for fold, test in enumerate(np.array_split(order, min(5, len(records)))):
            yield f"fold {fold}", np.setdiff1d(order, test), np.sort(test)
        return
    _require_two(families if split != "instance" else instances, split)
    if split == "both":
        _require_two(instances, split)
        for family in np.unique(families):
            for instance in np.unique(instances):
                is_family, is_instance = families == family, instances == instance
                test = np.flatnonzero(is_family & is_instance)
                train = np.flatnonzero(~is_family & ~is_instance)
                if test.size and train.size:
                    yield f"{family} on {instance}", train, test
        return
    keys = families if split == "job" else instances
    for key in np.unique(keys):
        yield str(key), np.flatnonzero(keys != key), np.flatnonzero(keys == key)


def _require_two(keys: NDArray[np.str_], split: str) -> None:
    if np.unique(keys).size < 2:
        raise ModelError(
            f"split {split!r} needs two groups, there is only {', '.join(np.unique(keys))!s}",
            hint="add runs of another job or instance type, or use --split random",
        )
