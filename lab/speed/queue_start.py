"""Call whether a new job starts within the hour, on clusters with the Philly trace's jobs.

    python -m advisor.lab.speed.queue_start --data ../shared/data

Who ran and waited is not published: each of Philly's three largest virtual clusters is simulated
as one that its jobs keep busy to 50, 65 and 80 % (``fifo``). Jobs of the second half are asked, 20
of each, with what was known when they were submitted: durations of jobs that had ended, and for
how long the others ran. A call is right if it says what happened with half of its draws or more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from advisor.lab import frame
from advisor.planners.core.errors import HOUR_S
from advisor.planners.queueing.engine import JobTable, SharedCluster
from advisor.planners.queueing.simulator import OpenJobs, simulate_queue, start_delays_s

LOADS = (0.5, 0.65, 0.8)
ASKED = 20
DRAWS = 40
LATEST = 12_000  # jobs of the largest cluster
TABLE = "measurements/cluster/philly_jobs.csv.gz"


def main() -> None:
    asked = frame.options(__doc__, {"--data": Path("../shared/data")})
    rows = pd.read_csv(asked.data / TABLE)
    rows["submit_s"] = pd.to_datetime(rows["timestamp"]).astype("datetime64[s]").astype("int64")
    every = []
    for name in rows["cluster"].value_counts().index[:3]:
        own = rows[rows["cluster"] == name].sort_values("submit_s", kind="stable").tail(LATEST)
        for load in LOADS:
            found = calls(own, load)
            every.append(found)
            print(line(f"{name} {100 * load:.0f} %", *found))
    print(line("all", *(np.concatenate(side) for side in zip(*every, strict=True))))


def line(name: str, share: np.ndarray, is_within: np.ndarray) -> str:
    """Return how often the calls were right, and the better constant answer."""
    right = np.mean((share >= 0.5) == is_within)
    usual = max(is_within.mean(), 1 - is_within.mean())
    return (
        f"{name:12} {is_within.size:4} jobs, {100 * is_within.mean():5.1f} % started within the "
        f"hour; called right {100 * right:5.1f} %, always the same {100 * usual:5.1f} %"
    )


def calls(rows: pd.DataFrame, load: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of draws within the hour, and what happened, of the jobs that are asked."""
    submit = rows["submit_s"].to_numpy(float) - float(rows["submit_s"].iloc[0])
    duration = np.maximum(rows["duration"].to_numpy(float), 1.0)
    devices = rows["num_gpus"].to_numpy(np.int64)
    size = int((duration * devices).sum() / submit[-1] / load)
    cluster = SharedCluster(nodes=max(size, int(devices.max())), devices_per_node=1)
    jobs = JobTable(submit_s=submit, devices=devices, duration_s=duration)
    start = simulate_queue(jobs, cluster).start_s
    share, is_within = [], []
    for at in np.linspace(submit.size // 2, submit.size - 1, ASKED).astype(int):
        now, earlier = submit[at], np.arange(at)
        has_ended = start[:at] + duration[:at] <= now
        is_open = earlier[~has_ended]
        elapsed = np.where(start[is_open] <= now, now - start[is_open], np.nan)
        delays = start_delays_s(
            duration[earlier[has_ended]],
            OpenJobs(devices=devices[is_open], elapsed_s=elapsed),
            cluster, devices=int(devices[at]), draws=DRAWS,
        )  # fmt: skip
        share.append(float(np.mean(delays <= HOUR_S)))
        is_within.append(start[at] - now <= HOUR_S)
    return np.array(share), np.array(is_within)


if __name__ == "__main__":
    main()
