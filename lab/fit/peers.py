"""Hivemind's recordings as rows: what would be asked of the peers, and what they reached.

Single nodes' runs are what is known of each peer; the best of repeats counts, since low ones were
bound by loading. A run's first minute is the 60 s after the first step of each of its nodes;
nothing later is read. Target batch and model are settings of the job, known before it starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.estimate.case import DIGITS
from advisor.estimate.unlike.peers import (
    KINDS,
    FittedRate,
    PeerModel,
    PeerSeries,
    minute_of,
    together,
)
from advisor.lab.data import HIVEMIND, public_runs
from advisor.lab.data.public_runs import NodeRecording
from advisor.lab.fit.verbs import FittedFolder
from advisor.learned.intervals import calibrate
from advisor.planners.systems.internet_peers import (
    FirstMinutes,
    PeerParameters,
    Peers,
    rate_after_a_minute,
    rate_of_parts,
)
from advisor.quantities import QUANTILES
from advisor.records import RunRecord

Floats = NDArray[np.float64]
Asked = TypeVar("Asked", Peers, FirstMinutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRows(Generic[Asked]):
    """Runs of several nodes: what is asked, which model they trained, what they reached."""

    asked: Asked
    samples_per_s: Floats  # (n,); measured [1/s]
    models: NDArray[np.str_]  # (n,)
    keys: tuple[str, ...]  # runs with the same key are repeats

    @property
    def peers(self) -> Peers:
        """What is asked, without what a minute showed."""
        asked: Peers | FirstMinutes = self.asked
        return asked.peers if isinstance(asked, FirstMinutes) else asked

    def take(self, rows: NDArray[np.intp]) -> PeerRows[Asked]:
        return PeerRows(
            asked=self.asked.take(rows), samples_per_s=self.samples_per_s[rows],
            models=self.models[rows], keys=tuple(self.keys[i] for i in rows.tolist()),
        )  # fmt: skip


def read_rows(data: Path) -> tuple[PeerRows[Peers], PeerRows[FirstMinutes]]:
    """Read the runs whose peers were recorded alone, and those whose first minute was.

    Raises ModelError if there are none.
    """
    folder = HIVEMIND.path("experiments.csv", data).parent
    for name in HIVEMIND.files:
        HIVEMIND.path(name, data)
    nodes = public_runs.read_nodes(folder)
    runs = [
        (record, nodes[name])
        for record in public_runs.read_hivemind(folder)
        if (name := record.record_id.removeprefix("hivemind/")) in nodes
    ]
    alone = _single_rates([record for record, _ in runs])
    parts = [r for r, _ in runs if _has_parts(r, alone)]
    if not parts or not runs:
        raise ModelError("no run on several nodes has its single nodes", hint="see SOURCE.md")
    minutes = [_minute(record, seen) for record, seen in runs]
    return (
        PeerRows(asked=_parts(parts, alone), **_labels(parts)),
        PeerRows(asked=_joined(minutes), **_labels([record for record, _ in runs])),
    )


def _labels(records: Sequence[RunRecord]) -> dict[str, Any]:
    return {
        "samples_per_s": np.array([_rate(r) for r in records]),
        "models": np.array([r.job.family for r in records]),
        "keys": tuple(
            f"{r.job.job_id} {[(m.instance_type, m.count) for m in r.configuration]} "
            f"{r.layout.get('slowest_link_gbit_per_s')}"
            for r in records
        ),
    }


def _rate(record: RunRecord) -> float:
    return 1e6 / float(record.time_s or np.nan)


def _single_rates(records: Sequence[RunRecord]) -> dict[tuple[str, str], float]:
    """(model, node type) -> best rate of one node alone [samples/s]."""
    best: dict[tuple[str, str], float] = {}
    for r in records:
        if r.instances == 1:
            key = r.job.family, r.configuration[0].instance_type
            best[key] = max(best.get(key, 0.0), _rate(r))
    return best


def _has_parts(record: RunRecord, alone: dict[tuple[str, str], float]) -> bool:
    return record.instances > 1 and all(
        (record.job.family, m.instance_type) in alone for m in record.configuration
    )


def _parts(records: Sequence[RunRecord], alone: dict[tuple[str, str], float]) -> Peers:
    rates = [
        sum(m.count * alone[r.job.family, m.instance_type] for m in r.configuration)
        for r in records
    ]
    return Peers(
        target_samples=np.array([_fact(r, "target_batch") for r in records]),
        samples_per_s=np.array(rates),
        parameters_gb=np.array([_fact(r, "parameters") / 1e9 for r in records]),
        peers=np.array([float(r.instances) for r in records]),
        link_bytes_per_s=np.array([_link_bytes_per_s(r) for r in records]),
    )


def _minute(record: RunRecord, nodes: Sequence[NodeRecording]) -> FirstMinutes:
    is_alone = record.instances < 2
    return together(
        [minute_of(_series(node)) for node in nodes],
        target_batch=np.nan if is_alone else _fact(record, "target_batch"),
        parameters_gb=_fact(record, "parameters") / 1e9,
        link_bytes_per_s=_link_bytes_per_s(record),
    )


def _series(node: NodeRecording) -> PeerSeries:
    return PeerSeries(
        step_samples=node.step_samples, step_t_s=node.step_t_s, step_s=node.step_s,
        synchronised=node.epoch, reading_t_s=node.system_t_s,
        sent_bytes_per_s=node.sent_bytes_per_s,
    )  # fmt: skip


def _joined(rows: Sequence[FirstMinutes]) -> FirstMinutes:
    def column(name: str) -> Floats:
        return np.concatenate([getattr(row, name) for row in rows])

    peers = Peers(**{
        f.name: np.concatenate([getattr(row.peers, f.name) for row in rows]) for f in fields(Peers)
    })  # fmt: skip
    names = [f.name for f in fields(FirstMinutes) if f.name != "peers"]
    return FirstMinutes(peers=peers, **{name: column(name) for name in names})


def _fact(record: RunRecord, name: str) -> float:
    value = record.job.facts.get(name)
    return value if isinstance(value, float) else np.nan


def _link_bytes_per_s(record: RunRecord) -> float:
    value = record.layout.get("slowest_link_gbit_per_s")
    return value * 1e9 / 8.0 if isinstance(value, float) else np.inf


# Fit the constants of peers that gather a batch together (``planners.systems.internet_peers``).
#
# On Hivemind's published recordings (``advisor data fetch hivemind``): constants by trust-region
# least squares of relative errors with a soft-L1 loss and a weak Gaussian prior; the intervals
# from the errors on each model while it is left out of the fit.


_PULL: Final = 0.1  # a constant one prior deviation off weighs as much as an error of 10 %
_USUAL_ERROR: Final = 0.1  # errors beyond 10 % count linearly
# Logarithms of the constants but for the growth, in the order of ``PeerParameters``; 2 s and more
# for a peer to find the others, a ring of 16-bit gradients over 10 Gbit/s, the physics' own 1 for
# the links, sharpness less 1.
_MEDIANS: Final = np.array([*np.log([1.0, 8.0, 16.0, 15.0, 3.0]), 0.0, 0.0, np.log(2.0)])
_DEVIATIONS: Final = np.array([0.1, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 1.0]) / 3.0
_SHARPEST: Final = 50.0
_LEAST_FAR_ROWS: Final = 20  # fewer say nothing of intervals: those of all rows stand for them


def fitted(given: Path | None, day: str) -> FittedFolder:
    parts, minutes = read_rows(packaged.measurements(given))
    of_parts = left_out(parts, rate_of_parts)[0]
    of_minutes = left_out(minutes, rate_after_a_minute)[0]
    model = PeerModel(
        parts=_fitted(parts, rate_of_parts, of_parts),
        minute=_fitted(minutes, rate_after_a_minute, of_minutes),
    )
    return FittedFolder(
        files={"parameters.json": text_of(model)},
        metrics={"parts": _metrics(of_parts, parts), "minute": _metrics(of_minutes, minutes)},
    )


def text_of(model: PeerModel) -> str:
    """Return ``parameters.json``."""
    content = {"schema_version": 1, **asdict(model)}
    return json.dumps(content, indent=2) + "\n"


def fitted_rate(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats]
) -> FittedRate:
    """Return the constants that fit some rows, with intervals from models left out in turn."""
    return _fitted(rows, form, left_out(rows, form)[0])


def _fitted(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats], rates: Floats
) -> FittedRate:
    """Return the constants; ``rates`` are those of each row's model left out."""
    errors = np.log(rates / rows.samples_per_s)
    is_far = np.isfinite(rows.peers.link_bytes_per_s)
    widths: dict[str, dict[str, float]] = {}
    for far in (True, False):
        some = is_far == far
        if some.sum() < _LEAST_FAR_ROWS:
            some = np.ones(len(errors), bool)
        found = calibrate(np.zeros((some.sum(), 1)), errors[some], rows.models[some])
        widths[KINDS[far]] = {
            str(c): _rounded(found.half_width(np.zeros((1, 1)), c)[0]) for c in QUANTILES
        }
    return FittedRate(constants=constants_of(rows, form), half_widths=widths)


def left_out(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats]
) -> tuple[Floats, dict[str, PeerParameters]]:
    """Return the rate of every row by constants fitted without its model, and those constants."""
    rates = np.empty(len(rows.samples_per_s))
    found: dict[str, PeerParameters] = {}
    for model in np.unique(rows.models).tolist():
        out = rows.models == model
        found[model] = constants_of(rows.take(np.flatnonzero(~out)), form)
        rates[out] = form(rows.asked.take(np.flatnonzero(out)), found[model])
    return rates, found


def constants_of(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats]
) -> PeerParameters:
    """Return the constants that fit some rows best."""
    from scipy.optimize import least_squares

    def misses(theta: Floats) -> Floats:
        errors = form(rows.asked, _constants(theta)) / rows.samples_per_s - 1.0
        return np.concatenate([errors, _PULL * (theta - _MEDIANS) / _DEVIATIONS])

    found = least_squares(misses, _MEDIANS, loss="soft_l1", f_scale=_USUAL_ERROR, diff_step=1e-4)
    return _constants(np.asarray(found.x, float), is_rounded=True)


def _constants(theta: Floats, *, is_rounded: bool = False) -> PeerParameters:
    values = np.exp(theta)
    values[4] = 1.0 + min(values[4], _SHARPEST)
    values[5] = theta[5]
    return PeerParameters(**{
        name: _rounded(value) if is_rounded else float(value)
        for name, value in zip(PeerParameters.__slots__, values, strict=True)
    })  # fmt: skip


def _rounded(value: Any) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def _metrics(rates: Floats, rows: PeerRows[Any]) -> dict[str, float]:
    errors = np.abs(rates / rows.samples_per_s - 1.0)
    return {
        "rows": float(len(errors)), "models left out in turn": float(np.unique(rows.models).size),
        "mape_fraction": float(errors.mean()),
        "median_ape_fraction": float(np.median(errors)),
    }  # fmt: skip
