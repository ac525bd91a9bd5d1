"""Fallback and elastic on recorded traces, against what other traces and the gang law say.

    python -m advisor.lab.experiments.spot_ways --data ../shared/data

Fallback: a 10 h job on each SkyPilot trace of four days and more, its finish and bill predicted
from all other traces (of the same day and zone none). Elastic: the same job on traces of node
counts, with the counts as recorded against those that ``planners.spot.timelines`` makes of the
spells of all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from advisor.lab import frame
from advisor.lab.data import SPOT
from advisor.planners.core.errors import HOUR_S
from advisor.planners.spot.availability import (
    Column,
    Rental,
    Spells,
    SpotJob,
    SpotTrace,
    replay_timeline,
    settling_s,
)
from advisor.planners.spot.history import GANG_EXPONENT, STARTS, SpotHistory, replay_records
from advisor.planners.spot.timelines import (
    Edges,
    growing_timeline,
    nested_levels,
    replay_alternating,
)
from advisor.records.traces import read_spot_traces

JOB = SpotJob(work_s=10 * HOUR_S, restart_s=300.0, checkpoint_interval_s=600.0, checkpoint_s=10.0)
PRICE_RATIO = 0.3
MINIMUM_DAYS = 4.0
LEAST_RECORD_S = 6 * HOUR_S
COPIES = 60


def main() -> None:
    data = frame.options(__doc__, {"--data": {"type": Path, "required": True}}).data
    folder = data / "measurements" / "spot"
    traces = [
        trace
        for trace in read_spot_traces(SPOT.path("intervals", data))
        if trace.end_s >= MINIMUM_DAYS * 24 * HOUR_S
    ]
    finish, bill = np.median(np.abs(list(_fallback(traces))), axis=0)
    print(f"  median error of the median finish {finish:.1%}, of the mean bill {bill:.1%}")
    counted = [t for t in traces if t.nodes > 1]
    for name in ("bamboo_aws_2020_availability.csv", "bamboo_aws_events.csv"):
        counted += read_spot_traces(folder / name, left_out=[])
    _elastic(counted)


def _fallback(traces: list[SpotTrace]) -> Iterator[tuple[float, float]]:
    """Yield the relative errors of median finish and mean bill, a trace left out."""
    print("fallback, 10 h of work: median finish, and mean bill in on-demand hours")
    print(f"  {'trace':40} {'finish':>9} {'predicted':>9} {'bill':>9} {'predicted':>9}")
    for trace in traces:
        others = [t for t in traces if t.name.split("/")[:2] != trace.name.split("/")[:2]]
        history = SpotHistory(
            spells=tuple(t.spells(t.nodes) for t in others),
            nodes=tuple(t.nodes for t in others),
            source="the other traces",
        )
        # Spells of n nodes from records of others, as ``GANG_EXPONENT`` has it.
        records = [
            spells.scaled(up=(trace.nodes / nodes) ** -GANG_EXPONENT)
            for spells, nodes in zip(history.spells, history.nodes, strict=True)
        ]
        real, told = _alternating([trace.spells(trace.nodes)]), _alternating(records)
        finish = [float(np.median(run.finish_s)) / HOUR_S for run in (real, told)]
        bill = [float(run.billed_s(PRICE_RATIO).mean()) / HOUR_S for run in (real, told)]
        print(f"  {trace.name:40}", *(f"{hours:9.2f}" for hours in finish + bill))
        yield finish[1] / finish[0] - 1.0, bill[1] / bill[0] - 1.0


def _alternating(records: list[Spells]) -> Rental:
    return replay_records(
        records,
        JOB,
        lambda spells, start: replay_alternating(JOB, spells, start),
        [0.5 * record.end_s for record in records],
    )


def _elastic(traces: list[SpotTrace]) -> None:
    """Print median finishes with all nodes only, on the recorded counts, and on the made ones."""
    print("elastic, 10 h of work on all nodes, speed by their number: median finish")
    print(f"  {'trace':40} {'all there':>9} {'plain':>9} {'elastic':>9} {'predicted':>9}")
    for trace in traces:
        nodes = int(trace.available.max())
        if nodes < 2 or trace.end_s < LEAST_RECORD_S:
            continue
        counts = np.unique(np.ceil(nodes / 2.0 ** np.arange(int(np.log2(nodes)), -1, -1)))
        counts = counts.astype(np.int64)
        long = trace.repeated(COPIES)
        every = [_edges(long, int(count)) for count in counts]
        made = nested_levels(long.spells(nodes), counts, GANG_EXPONENT)
        finish = [
            _median_h(levels, used, trace.end_s)
            for levels, used in ((every[-1:], counts[-1:]), (every, counts), (made, counts))
        ]
        share = trace.spells(nodes).availability
        print(f"  {trace.name[:40]:40} {share:9.0%}", *(f"{hours:9.2f}" for hours in finish))


def _edges(trace: SpotTrace, count: int) -> Edges:
    spells = trace.spells(count)
    return spells.up_start_s, spells.up_start_s + spells.up_length_s


def _median_h(levels: list[Edges], counts: NDArray[np.int64], record_s: float) -> float:
    rate: Column = counts / counts[-1]
    timeline = growing_timeline(levels, counts, rate, settling_s(JOB))
    start = (np.arange(STARTS) + 0.5) / STARTS * record_s
    run = replay_timeline(timeline, JOB, start, np.full(STARTS, JOB.attempt_s))
    return float(np.median(np.nan_to_num(run.finish_s, nan=np.inf))) / HOUR_S


if __name__ == "__main__":
    main()
