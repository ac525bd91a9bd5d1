"""What a run used over time, for people to look at: rates and steps, thinned to what can be seen.

Readings are cumulative counters at uneven ticks. A point stands for an equal stretch of time:
counters as their mean rate over it, gauges as their largest value in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Final

from advisor.collectors import summary
from advisor.collectors.recording import Reading, Recording

MOST_POINTS: Final = 400
_COUNTERS: Final[Mapping[str, Callable[[Reading], float]]] = {
    "cpu_cores": lambda r: r.cpu_s,
    "disk_read_bytes_per_s": lambda r: float(r.disk_read_bytes),
    "disk_write_bytes_per_s": lambda r: float(r.disk_write_bytes),
    "network_received_bytes_per_s": lambda r: float(r.network_received_bytes),
    "network_sent_bytes_per_s": lambda r: float(r.network_sent_bytes),
}
_GAUGES: Final[Mapping[str, Callable[[Reading], float | None]]] = {
    "memory_bytes": lambda r: float(r.rss_bytes if r.pss_bytes is None else r.pss_bytes),
    "gpu_fraction": lambda r: r.gpu_fraction,
    "gpu_memory_bytes": lambda r: r.gpu_memory_bytes,
    "gpu_power_w": lambda r: r.gpu_power_w,
}


def run_record(seen: Recording, *, most: int = MOST_POINTS) -> dict[str, Any]:
    """Return a run as the page shows it.

    Returns
    -------
    dict
        ``lines`` in words; ``host``; ``readings`` with ``t_s`` and a list of its length for every
        quantity (``cpu_cores``, ``memory_bytes``, ...), null where it was not recorded; ``ranks``
        with their steps, each point the mean, least and most of ``steps_per_point``;
        ``step_time`` as it settled, or null.
    """
    step = seen.step_time
    return {
        "run": seen.run_id,
        "command": " ".join(seen.command),
        "started_at": seen.started_at,
        "duration_s": seen.duration_s,
        "startup_s": seen.startup_raw_s or seen.startup_s,
        "lines": summary.lines(seen),
        "host": {
            "cpu_model": seen.host.cpu_model,
            "cpu_limit": seen.host.cpu_limit,
            "memory_limit_bytes": seen.host.memory_limit_bytes,
            "gpus": list(seen.host.gpus),
        },
        "readings": readings(seen.readings, most),
        "ranks": [
            {"rank": one.rank, **steps(one.step_s, most)} for one in seen.ranks if one.step_s
        ],
        "step_time": None if step is None else asdict(step),
    }


def readings(seen: Sequence[Reading], most: int) -> dict[str, list[Any]]:
    """Return rates and gauges in at most ``most`` equal stretches; empty below two readings."""
    # The last reading of a program that has left holds nothing any more.
    seen = [one for one in seen if one.processes > 0]
    if len(seen) < 2 or seen[-1].t_s <= seen[0].t_s:
        return {"t_s": []}
    begin_s, count = seen[0].t_s, min(most, len(seen) - 1)
    width_s = (seen[-1].t_s - begin_s) / count
    parts: dict[int, list[Reading]] = {}
    for one in seen[1:]:
        parts.setdefault(min(int((one.t_s - begin_s) / width_s), count - 1), []).append(one)
    ends = [seen[0], *(part[-1] for part in parts.values())]
    found: dict[str, list[Any]] = {"t_s": [end.t_s for end in ends[1:]]}
    for name, read in _COUNTERS.items():
        found[name] = [_rate(a, b, read) for a, b in itertools.pairwise(ends)]
    for name, gauge in _GAUGES.items():
        found[name] = [_largest(map(gauge, part)) for part in parts.values()]
    return found


def steps(step_s: Sequence[float], most: int) -> dict[str, Any]:
    """Return the steps in order, as many to a point as it takes; the last may hold fewer."""
    each = -(-len(step_s) // most)
    parts = [step_s[at : at + each] for at in range(0, len(step_s), each)]
    return {
        "steps": len(step_s),
        "steps_per_point": each,
        "mean_s": [fmean(part) for part in parts],
        "low_s": [min(part) for part in parts],
        "high_s": [max(part) for part in parts],
    }


def _rate(before: Reading, after: Reading, read: Callable[[Reading], float]) -> float:
    """Return a counter's mean rate; where a process left with its share it counts as nothing."""
    return max(read(after) - read(before), 0.0) / max(after.t_s - before.t_s, 1e-9)


def _largest(values: Any) -> float | None:
    return max((one for one in values if one is not None), default=None)
