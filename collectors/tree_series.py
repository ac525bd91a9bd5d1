"""Series from readings: each process of the tree, and when a quota took time away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from advisor.collectors.profiler_log import ProcessReading
from advisor.collectors.recording import Reading
from advisor.collectors.series import ProcessSeries, Throttling


def process_series(
    readings: Sequence[ProcessReading], start_ns: int, ranks: Mapping[int, int]
) -> tuple[ProcessSeries, ...]:
    """Return each process's series, in the order of their first readings."""
    by_process: dict[tuple[int, int], list[ProcessReading]] = {}
    for one in readings:
        by_process.setdefault((one.pid, one.start_ticks), []).append(one)
    return tuple(
        ProcessSeries(
            pid=pid,
            rank=ranks.get(pid),
            t_s=tuple((one.t_ns - start_ns) / 1e9 for one in its),
            rss_bytes=tuple(one.rss_bytes for one in its),
            cpu_s=tuple(one.cpu_ns / 1e9 for one in its),
            minor_faults=tuple(one.minor_faults for one in its),
            major_faults=tuple(one.major_faults for one in its),
            received_bytes=tuple(one.received_bytes for one in its),
            sent_bytes=tuple(one.sent_bytes for one in its),
        )
        for (pid, _), its in by_process.items()
    )


def throttling(readings: Sequence[Reading]) -> tuple[Throttling, ...]:
    """Return the stretches in which the throttled time grew from each reading to the next."""
    found: list[Throttling] = []
    for before, after in pairwise(readings):
        lost_s = after.throttled_s - before.throttled_s
        if lost_s <= 0:
            continue
        begin_s, so_far_s = before.t_s, 0.0
        if found and found[-1].end_s == before.t_s:
            last = found.pop()
            begin_s, so_far_s = last.begin_s, last.throttled_s
        found.append(Throttling(begin_s=begin_s, end_s=after.t_s, throttled_s=so_far_s + lost_s))
    return tuple(found)
