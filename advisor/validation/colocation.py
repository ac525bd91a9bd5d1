"""Protocol ``colocation``: Gavel's pairs of jobs on one GPU, each pair left out in turn.

What the other pairs on the GPU tell of two jobs (``planners.colocation.interference.fit``) says
how fast each is beside the other (``shared_rates``): what a user asks in Python who has measured
some pairs of jobs (docs/planner/colocation.md). Baselines see the same other pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from advisor.errors import ModelError
from advisor.lab.data import GAVEL
from advisor.planners.colocation.interference import MeasuredPair, Sharer, fit, shared_rates
from advisor.validation.scores import THE_PRODUCT, Group, Validation, score

_SOURCE: Final = "oracle_motivation"
Rates = dict[str, list[float]]


SEEN: Final = (
    "the form of the law, and the least slowdown that is told from none",
    "each job beside other jobs on the same GPU",
)


def run(data: Path) -> Validation:
    """Score the rates of pairs under ``data``.

    Raises
    ------
    AbsentDataError
        If the table is not there.
    ModelError
        If it has no pair to leave out.
    """
    by_device = _pairs(data)
    if not by_device:
        raise ModelError(
            f"no pairs of jobs in {GAVEL.title}", hint="name their folder with --data"
        )
    found = {name: _left_out(pairs) for name, pairs in by_device.items()}
    every = _joined(found)
    measured = every.pop("measured")
    unseen = every.pop("neither job seen")
    return Validation(
        protocol="colocation",
        description="rates of two jobs on one GPU over their rates alone, each pair left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=score(every.pop("ours"), measured),
        groups=[
            Group(
                group=name,
                scores=score(one["ours"], one["measured"]),
                baselines={b: score(one[b], one["measured"]) for b in every},
            )
            for name, one in sorted(found.items())
        ],
        baselines={name: score(values, measured) for name, values in every.items()},
        figures={
            "the two jobs in no other pair, MAPE": score(unseen, measured).mape_fraction,
            "the two jobs in no other pair, median APE": score(
                unseen, measured
            ).median_ape_fraction,
        },
        notes=(
            "no interval: the law says what is kept, not how surely",
            "rows: a job in a pair; a pair of one job with itself is one row",
            "'the two jobs in no other pair': the mean job of the GPU stands for both",
        ),
    )


def _joined(found: dict[str, Rates]) -> Rates:
    names = next(iter(found.values()))
    return {name: [x for one in found.values() for x in one[name]] for name in names}


def _pairs(data: Path) -> dict[str, list[MeasuredPair]]:
    """Return the pairs that fit, by device."""
    frame = GAVEL.read("pairs", data)
    frame = frame[(frame["source"] == _SOURCE) & (frame["fits"] == 1)]
    return {
        str(name): [
            MeasuredPair(
                first=str(row["first"]),
                second=str(row["second"]),
                first_rate=float(row["first_rate"]),
                second_rate=float(row["second_rate"]),
            )
            for row in rows.to_dict("records")
        ]
        for name, rows in frame.groupby("accelerator")
    }


def _left_out(pairs: list[MeasuredPair]) -> Rates:
    """Return measured rates, and each way's of the same pairs when they are left out."""
    found: Rates = {}
    for at, pair in enumerate(pairs):
        others = pairs[:at] + pairs[at + 1 :]
        strangers = [
            p for p in others if {p.first, p.second}.isdisjoint({pair.first, pair.second})
        ]
        said: dict[str, tuple[float, float]] = {
            "measured": (pair.first_rate, pair.second_rate),
            "ours": _rates(fit(others), pair),
            "constant": _constant(others),
            "aggressor x victim": _factors(others, pair),
            "half each": (0.5, 0.5),
            "neither job seen": _mean_rates(fit(strangers)),
        }
        sides = 1 if pair.first == pair.second else 2
        for name, both in said.items():
            found.setdefault(name, []).extend(both[:sides])
    return found


def _rates(known: Mapping[str, Sharer], pair: MeasuredPair) -> tuple[float, float]:
    first, second = (known.get(name) or _mean_job(known) for name in (pair.first, pair.second))
    a, b = shared_rates([first, second])
    return float(a), float(b)


def _mean_job(known: Mapping[str, Sharer]) -> Sharer:
    return Sharer(
        exposure=float(np.exp(np.mean([np.log(one.exposure) for one in known.values()]))),
        pressure=float(np.exp(np.mean([np.log(one.pressure) for one in known.values()]))),
    )


def _mean_rates(known: Mapping[str, Sharer]) -> tuple[float, float]:
    a, b = shared_rates([_mean_job(known)] * 2)
    return float(a), float(b)


def _sides(pairs: list[MeasuredPair]) -> list[tuple[str, str, float]]:
    """Return (job, the other, rate), once for a job beside itself."""
    sides = [(p.first, p.second, p.first_rate) for p in pairs]
    return sides + [(p.second, p.first, p.second_rate) for p in pairs if p.first != p.second]


def _constant(others: list[MeasuredPair]) -> tuple[float, float]:
    middle = float(np.median([rate for _, _, rate in _sides(others)]))
    return middle, middle


def _factors(others: list[MeasuredPair], pair: MeasuredPair) -> tuple[float, float]:
    """Return ln(rate) = victim + aggressor, least squares: what is known as sensitivity models."""
    sides = _sides(others)
    names = sorted({name for job, other, _ in sides for name in (job, other)})
    place = {name: k for k, name in enumerate(names)}
    design = np.zeros((len(sides), 2 * len(names)))
    for row, (job, other, _) in enumerate(sides):
        design[row, place[job]] = design[row, len(names) + place[other]] = 1.0
    logs = np.log([rate for _, _, rate in sides])
    solved, *_ = np.linalg.lstsq(design, logs, rcond=None)

    victim = dict(zip(names, solved[: len(names)], strict=True))
    aggressor = dict(zip(names, solved[len(names) :], strict=True))
    middle = float(np.mean(logs)) / 2.0  # of a job in no other pair

    def rate(job: str, other: str) -> float:
        return float(np.exp(victim.get(job, middle) + aggressor.get(other, middle)))

    return rate(pair.first, pair.second), rate(pair.second, pair.first)
