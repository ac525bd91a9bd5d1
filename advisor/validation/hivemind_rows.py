"""Rows of the hivemind collection for the protocols ``series`` and ``cluster``.

A run's first minute is the 60 s after the first step of each of its nodes; nothing later is read.
The target batch and the model's size are settings of the job, known before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.measurements import HIVEMIND
from advisor.records import RunRecord
from advisor.records.importers import hivemind
from advisor.records.importers.hivemind import WINDOW_S, NodeRecording

Floats = NDArray[np.float64]

_LONG: Final = 4.0  # a step this many times the third quartile waited for a synchronisation
_LEAST_STALL_S: Final = 1.5
_APART_S: Final = 3.0  # epoch counters that move faster were desynchronised
_MARGIN_S: Final = 3.0  # readings that end this long before the window: the run itself ended


@dataclass(frozen=True, slots=True, kw_only=True)
class HivemindRun:
    """One run with what its nodes showed."""

    record: RunRecord
    nodes: Sequence[NodeRecording]

    @property
    def samples_per_s(self) -> float:
        """The label."""
        return 1e6 / float(self.record.time_s or np.nan)

    @property
    def target_batch(self) -> float:
        """Samples between synchronisations; nan for a single node."""
        value = self.record.job.facts.get("target_batch")
        return float(value) if isinstance(value, float) and self.record.instances > 1 else np.nan

    @property
    def parameters_gb(self) -> float:
        """Parameters [1e9]; nan where the model's size is not known."""
        value = self.record.job.facts.get("parameters")
        return float(value) / 1e9 if isinstance(value, float) else np.nan


def read_runs(data: Path) -> list[HivemindRun]:
    """Read the runs that have steps recorded.

    Raises
    ------
    ModelError
        If there are none.
    """
    folder = HIVEMIND.path("experiments.csv", data).parent
    nodes = hivemind.read_nodes(folder)
    runs = []
    for record in hivemind.read(folder):
        seen = nodes.get(record.record_id.removeprefix("hivemind/"), [])
        if seen:
            runs.append(HivemindRun(record=record, nodes=seen))
    if not runs:
        raise ModelError(f"no runs in {folder}", hint="name a folder laid out like shared/data")
    return runs


def ring_gb(run: HivemindRun) -> float:
    """Return what a ring sends per node and synchronisation [1e9 parameters]."""
    n = run.record.instances
    return 2.0 * (n - 1) / n * run.parameters_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What one node's first minute showed; times in s, rates in samples/s."""

    window: float
    running: float
    seen_stall_s: float
    synchronisations: float
    is_stalled: float
    stalled_s: float
    sent_mb_s: float
    between: float
    has_ended: float
    late: float
    scatter: float


def first_minute(node: NodeRecording) -> Minute:
    """Return the facts of a node's first ``WINDOW_S``."""
    t_s, step_s, samples = node.step_t_s, node.step_s, node.step_samples
    steps = len(t_s)
    usual = step_s[1:] if steps > 1 else step_s  # the first step warms up
    longest = max(_LONG * float(np.quantile(usual, 0.75)), _LEAST_STALL_S)
    is_long = usual > longest
    stall_s = float(usual[is_long].sum())
    changes = _changes(t_s, node.epoch)
    last = float(t_s[-1])
    seen_until = float(node.system_t_s.max()) if node.system_t_s.size else last
    has_ended = seen_until < WINDOW_S - _MARGIN_S
    tail = min(seen_until, WINDOW_S) - last
    is_stalled = tail > 3 * float(np.quantile(usual, 0.9)) + 2 and not has_ended
    after = node.system_t_s > last
    sent = node.sent_bytes_per_s[after] if is_stalled else np.empty(0)
    active_s = max(seen_until, 1.0) if has_ended else WINDOW_S
    waited_s = stall_s + float(step_s[0]) + (tail if is_stalled else 0.0)
    busy_s = max(active_s - waited_s, 0.5 * steps * float(np.median(usual)) + 0.01)
    between = np.nan
    if len(changes) > 1:
        passed = max(float(t_s[changes[-1]] - t_s[changes[0]]), 0.5)
        between = (changes[-1] - changes[0]) * samples / passed
    half = float((t_s > WINDOW_S / 2).sum())
    return Minute(
        window=steps * samples / WINDOW_S,
        running=max(steps - int(is_long.sum()), 1) * samples / busy_s,
        seen_stall_s=stall_s,
        synchronisations=float(len(changes)),
        is_stalled=float(is_stalled),
        stalled_s=tail if is_stalled else 0.0,
        sent_mb_s=float(np.mean(sent)) / 1e6 if sent.size else np.nan,
        between=between,
        has_ended=float(has_ended),
        late=2 * half * samples / WINDOW_S,
        scatter=float(np.std(usual) / np.mean(usual)),
    )


def _changes(t_s: Floats, epoch: Floats) -> list[int]:
    """Return the steps at which the global epoch moved on, jitter left out."""
    kept: list[int] = []
    for step in np.flatnonzero(np.diff(epoch) > 0) + 1:
        if not kept or t_s[step] - t_s[kept[-1]] >= _APART_S:
            kept.append(int(step))
    return kept


def by_group(
    groups: NDArray[Any], fit_predict: Any, count: int
) -> tuple[Floats, Floats, Mapping[str, NDArray[np.intp]]]:
    """Predict each group by a fit on all others.

    Parameters
    ----------
    groups : array of shape (count,)
    fit_predict : callable
        Takes train and test indices, returns predictions and bounds.
    count : int

    Returns
    -------
    tuple
        Predictions, shape (count,); bounds, shape (count, 2); rows of each group.
    """
    predicted, bounds = np.empty(count), np.empty((count, 2))
    rows = {str(g): np.flatnonzero(groups == g) for g in np.unique(groups)}
    for test in rows.values():
        train = np.setdiff1d(np.arange(count), test)
        predicted[test], bounds[test] = fit_predict(train, test)
    return predicted, bounds, rows
