"""What a run used over time, for people to look at: rates and steps, thinned to what can be seen.

Readings are cumulative counters at uneven ticks. A point stands for an equal stretch of time:
counters as their mean rate over it, gauges as their largest value in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from advisor.collectors.recording import Reading

_COUNTERS: Final[Mapping[str, Callable[[Reading], float]]] = {
    "cpu_cores": lambda r: r.cpu_s,
    "waiting_cores": lambda r: r.run_delay_s,
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


def readings(seen: Sequence[Reading], most: int) -> dict[str, list[Any]]:
    """Return rates and gauges in at most ``most`` equal stretches; empty below two readings.

    Returns
    -------
    dict
        ``t_s``, where each stretch ends, and a list of its length for every quantity
        (``cpu_cores``, ``memory_bytes``, ...), None where it was not recorded.
    """
    seen = alive(seen)
    if len(seen) < 2 or seen[-1].t_s <= seen[0].t_s:
        return {"t_s": []}
    begin_s, count = seen[0].t_s, min(most, len(seen) - 1)
    width_s = (seen[-1].t_s - begin_s) / count
    parts: dict[int, list[Reading]] = {}
    for one in seen[1:]:
        parts.setdefault(min(int((one.t_s - begin_s) / width_s), count - 1), []).append(one)
    ends = [seen[0], *(part[-1] for part in parts.values())]
    first, *others = parts.values()
    held = [[seen[0], *first], *others]
    found: dict[str, list[Any]] = {"t_s": [end.t_s for end in ends[1:]]}
    for name, read in _COUNTERS.items():
        found[name] = [_rate(a, b, read) for a, b in itertools.pairwise(ends)]
    for name, gauge in _GAUGES.items():
        found[name] = [_largest(map(gauge, part)) for part in held]
    return found


def alive(seen: Sequence[Reading]) -> list[Reading]:
    """Return the readings of a program that is there: the last of one that left holds nothing."""
    return [one for one in seen if one.processes > 0]


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
