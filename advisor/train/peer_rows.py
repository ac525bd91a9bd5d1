"""Hivemind's recordings as rows: what would be asked of the peers, and what they reached.

Single nodes' runs are what is known of each peer; the best of repeats counts, since low ones were
bound by loading. A run's first minute is the 60 s after the first step of each of its nodes;
nothing later is read. Target batch and model are settings of the job, known before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.lab.data import HIVEMIND
from advisor.planners.links.peers import FirstMinutes, Peers
from advisor.predict.peer_minutes import PeerSeries, minute_of, together
from advisor.records import RunRecord
from advisor.records.importers import hivemind
from advisor.records.importers.hivemind import NodeRecording

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
        """Return the chosen rows."""
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
    nodes = hivemind.read_nodes(folder)
    runs = [
        (record, nodes[name])
        for record in hivemind.read(folder)
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
