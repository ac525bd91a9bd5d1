"""What more runs change: the errors on each folder of them, fitted without it and with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.errors import ModelError
from advisor.learned import evaluate, metrics

if TYPE_CHECKING:
    from advisor.learned import Problem, RunRegressor
    from advisor.records import RunRecord


def by_folder(
    asked: Problem,
    build: Callable[[], RunRegressor],
    folders: Mapping[str, Sequence[RunRecord]],
    n_jobs: int = 1,
) -> list[dict[str, Any]]:
    """Return a row for each folder: its runs, and their errors fitted without it and with it.

    Either way each program is left out in turn, so that nothing is asked about a run whose program
    was fitted. Without it there is no error where too few runs are left to fit.
    """
    whole = evaluate(asked, build, "job", has_intervals=False, n_jobs=n_jobs)
    predicted = np.full(len(asked.records), np.nan)
    predicted[whole.rows] = whole.predicted
    rows = []
    for folder, records in folders.items():
        names = {record.record_id for record in records}
        here = np.array([r.record_id in names for r in asked.records])
        scored = here & ~asked.is_censored & np.isfinite(predicted)
        if not scored.any():
            continue
        told: dict[str, Any] = {"folder": folder, "runs": int(scored.sum())}
        told |= _errors("with", metrics(predicted[scored], asked.truth[scored]).to_record())
        try:
            alone = evaluate(
                asked, build, "job", tested=here, fitted=~here, has_intervals=False, n_jobs=n_jobs
            )
            told |= _errors("without", alone.overall.to_record())
        except ModelError:  # nothing is left to fit
            pass
        rows.append(told)
    return rows


def _errors(how: str, found: Mapping[str, float]) -> dict[str, float]:
    names = ("mape_fraction", "median_ape_fraction")
    return {f"{how}_{name}": found[name] for name in names}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of ``by_folder``; none where there is one folder."""
    if len(rows) < 2:
        return []
    width = max(26, *(len(str(row["folder"])) for row in rows))
    head = f"{'left out, MAPE / median %':{width}}{'runs':>7}{'without them':>15}{'with them':>15}"
    return ["", head, *(_line(row, width) for row in rows)]


def _line(row: Mapping[str, Any], width: int) -> str:
    cells = [
        f"{100 * row[f'{how}_mape_fraction']:.1f} / {100 * row[f'{how}_median_ape_fraction']:.1f}"
        if f"{how}_mape_fraction" in row
        else "-"
        for how in ("without", "with")
    ]
    return f"{row['folder']!s:{width}}{row['runs']:7}{cells[0]:>15}{cells[1]:>15}"
