"""All tables that the layout model is fitted on, and what its folds are without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from advisor.lab.data import BLACKWELL, FINETUNE
from advisor.train import blackwell_rows, finetune_rows
from advisor.train.asked_rows import AskedRun, columns_of, joined
from advisor.train.layout_rows import LayoutRows, read


def read_all(folder: Path) -> LayoutRows:
    """Read the published layouts, and the fine-tuning runs and Blackwell steps where they are."""
    rows = read(folder)
    asked: list[AskedRun] = []
    if FINETUNE.has("runs", folder):
        asked += finetune_rows.read(folder)[0]
    if BLACKWELL.has("steps", folder):
        asked += blackwell_rows.read(folder)[0]
    return joined(rows, columns_of(asked)) if asked else rows


def parts_left_out(rows: LayoutRows) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return which rows each fold of a model or an accelerator of the fine-tuning runs is without.

    A model is left out with its name; an accelerator with all fine-tuning runs on it.
    """
    tuned = rows.table == finetune_rows.TABLE
    found = {}
    for kind, column in (("model", rows.model), ("gpu", rows.gpu)):
        for name in sorted(set(column[tuned])):
            found[finetune_rows.fold(kind, name)] = np.asarray(tuned & (column == name))
    return found
