"""What a run used over time and what was understood of it, as the page shows it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from advisor.collectors import summary
from advisor.collectors.recording import Recording
from advisor.shown.thinned import readings, steps

MOST_POINTS: Final = 400


def run_record(seen: Recording) -> dict[str, Any]:
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
        "readings": readings(seen.readings, MOST_POINTS),
        "ranks": [
            {"rank": one.rank, **steps(one.step_s, MOST_POINTS)}
            for one in seen.ranks
            if one.step_s
        ],
        "step_time": None if step is None else asdict(step),
    }
