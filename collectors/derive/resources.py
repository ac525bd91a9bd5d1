"""Resources that a recording used: rates at a fixed interval, and the memory to rent for it.

Readings are cumulative counters at uneven ticks. Here they become means over equal intervals, from
the first step on: imports and the building of the model say nothing of the training. Models learn
from these rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from advisor.collectors.format import Curve, RankSeries, Reading, Recording

INTERVAL_S: Final = 0.5
_LONGEST_S: Final = 120.0  # of a kept series: a profile lasts about two minutes
_MOST_STEPS: Final = 240  # readings of a series by step: as many as of one by time


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Rates of the whole process tree while it trained."""

    interval_s: float
    # ``cpu_cores`` (cores busy), ``memory_bytes``, ``network_received_bytes_per_s``,
    # ``network_sent_bytes_per_s``; all of one length, which is 0 where the recording ended before
    # its second reading
    channels: Mapping[str, tuple[float, ...]]
    busy_cores: float | None  # processor time over time; None without readings [cores]
    # processor time of all processes and threads; None also without steps [s]
    cpu_s_per_step: float | None
    # rank_mean, rank_max: where several ranks trained together, the mean over them and the
    # largest, of equal parts of their steps: ``step_s`` and ``wait_s`` (blocked in communication)
    # of a step, ``network_sent_bytes_per_s`` and ``network_received_bytes_per_s`` on the wire
    rank_mean: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    rank_max: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    rank_interval_s: float = 1.0  # of such a part; 1 without [s]


_COUNTERS: Final[Mapping[str, Callable[[Reading], float]]] = {
    "cpu_cores": lambda r: r.cpu_s,
    "network_received_bytes_per_s": lambda r: r.network_received_bytes,
    "network_sent_bytes_per_s": lambda r: r.network_sent_bytes,
}


def resources_of(recording: Recording) -> Resources:
    """Return what the recording used from its first step on."""
    started_s = recording.startup_raw_s or recording.startup_s or 0.0
    seen = [r for r in recording.readings if r.t_s >= started_s]
    if len(seen) < 2 or seen[-1].t_s <= seen[0].t_s:
        return Resources(
            interval_s=INTERVAL_S, channels={}, busy_cores=None, cpu_s_per_step=None,
            **of_ranks(recording.ranks),
        )  # fmt: skip
    duration_s = seen[-1].t_s - seen[0].t_s
    count = max(int(min(duration_s, _LONGEST_S) / INTERVAL_S), 1)
    ends = [seen[0].t_s + INTERVAL_S * i for i in range(count + 1)]
    times = [r.t_s for r in seen]

    def at_ends(read: Callable[[Reading], float]) -> list[float]:
        curve = Curve(times, [float(read(r)) for r in seen])
        return [curve.at(end) for end in ends]

    channels = {name: _rates(at_ends(read)) for name, read in _COUNTERS.items()}
    channels["memory_bytes"] = tuple(at_ends(lambda r: r.rss_bytes)[1:])
    busy = max(seen[-1].cpu_s - seen[0].cpu_s, 0.0) / duration_s
    step = recording.step_time
    return Resources(
        interval_s=INTERVAL_S,
        channels=channels,
        busy_cores=busy,
        cpu_s_per_step=busy * step.raw_s if step else None,
        **of_ranks(recording.ranks),
    )


def of_ranks(ranks: Sequence[RankSeries]) -> dict[str, Any]:
    """Return the fields of ``Resources`` that say how ranks differ; none of a single one.

    A channel that was not seen of every rank is left out.
    """
    steps = min((len(one.step_s) for one in ranks), default=0)
    if len(ranks) < 2 or steps == 0:
        return {}
    parts = min(steps, _MOST_STEPS)
    each = [_channels_of(one, parts) for one in ranks]
    known = [name for name in each[0] if all(name in one for one in each)]
    columns = {name: list(zip(*(one[name] for one in each), strict=True)) for name in known}
    usual_s = fmean(fmean(one.step_s) for one in ranks)
    return {
        "rank_mean": {name: tuple(map(fmean, rows)) for name, rows in columns.items()},
        "rank_max": {name: tuple(map(max, rows)) for name, rows in columns.items()},
        "rank_interval_s": usual_s * steps / parts,
    }


def _channels_of(rank: RankSeries, parts: int) -> dict[str, tuple[float, ...]]:
    """Return a rank's channels in so many parts; what was not seen of it is left out."""
    step_s = _parts(rank.step_s, parts)
    found = {"step_s": step_s}
    if rank.wait_s:
        found["wait_s"] = _parts(rank.wait_s, parts)
    for name, per_step in (
        ("network_sent_bytes_per_s", rank.sent_bytes_per_step),
        ("network_received_bytes_per_s", rank.received_bytes_per_step),
    ):
        if per_step is not None and min(step_s) > 0:
            found[name] = tuple(per_step / one for one in step_s)
    return found


def _parts(values: Sequence[float], parts: int) -> tuple[float, ...]:
    """Return the means of equal parts of a series, overlapping where it is too short for them."""
    ends = [len(values) * i / parts for i in range(parts + 1)]
    return tuple(
        fmean(values[int(begin) : max(int(end), int(begin) + 1)])
        for begin, end in itertools.pairwise(ends)
    )


def _rates(values: Sequence[float]) -> tuple[float, ...]:
    """Return a counter's mean rates; where a process left with its share it counts as nothing."""
    return tuple(
        max(after - before, 0.0) / INTERVAL_S for before, after in itertools.pairwise(values)
    )


GIB = 2**30

# The peak of a minute is not the peak of a day: allocators fragment, the last batch of an epoch,
# validation and checkpoints come later.
MARGIN = 1.2
# Memory is sold in these steps; above the last, in multiples of it. [GiB]
_STEPS_GIB = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def advised_memory_bytes(peak_bytes: int) -> int:
    """Return the memory to ask for: the peak with a margin, rounded up to what is sold.

    Examples
    --------
    >>> advised_memory_bytes(800 * 2**20) == 2**30
    True
    """
    if peak_bytes < 0:
        raise ValueError(f"a peak of {peak_bytes} bytes is out of range")
    wanted = peak_bytes * MARGIN / GIB
    for step in _STEPS_GIB:
        if wanted <= step:
            return int(step * GIB)
    last = _STEPS_GIB[-1]
    return int(-(-wanted // last) * last) * GIB


def peak_memory_bytes(readings: Sequence[Reading], largest_process_bytes: int = 0) -> int:
    """Return the largest memory of all processes together, shared pages counted once.

    Forked loader workers have their parent's pages in their own resident set too. Recordings of
    earlier versions looked seldom for what is shared, and not in their first seconds: there the
    resident memory counts by the share of it that was proportional when it was looked.

    ``largest_process_bytes``: largest resident memory of any single process; proportional memory
    is divided by strangers as well, hence the result is no less than this [bytes].
    """
    if readings and readings[0].pss_bytes is not None:
        peak = max(reading.pss_bytes or 0 for reading in readings)
    else:
        peak = _peak_by_shares(readings)
    return max(peak, largest_process_bytes)


def _peak_by_shares(readings: Sequence[Reading]) -> int:
    peak = 0.0
    share = next((one for one in map(_proportional_share, readings) if one), 1.0)
    before = None
    for reading in readings:
        if reading.pss_bytes != before:
            before, share = reading.pss_bytes, _proportional_share(reading) or share
        peak = max(peak, reading.rss_bytes * share)
    return int(peak)


def _proportional_share(reading: Reading) -> float:
    """Return the proportional share of the resident memory; 0 where it is not known."""
    if reading.pss_bytes is None or not reading.rss_bytes:
        return 0.0
    return min(1.0, reading.pss_bytes / reading.rss_bytes)
