"""Write ``datasets/availability/spell_quantiles.csv`` from the recorded spot traces.

    python -m advisor.lab.experiments.availability_facts --data ../shared/data

Summary facts only (counts, means, quantiles of spell lengths), no copy of the traces.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from advisor import data
from advisor.lab import frame
from advisor.lab.data import SPOT
from advisor.planners.core.errors import HOUR_S
from advisor.records.traces import read_spot_traces

LEVELS = [0, 2.5, 5, *range(10, 100, 10), 95, 97.5, 100]
SOURCE = "skypilot-org/spot-traces @ 221da1ab (no licence file: facts only)"
MINIMUM_DAYS = 4.0


def main() -> None:
    folder = data.measurements(frame.options(__doc__, {"--data": Path}).data)
    # All rows first: an error must not leave half a table in the package.
    rows = list(_rows(SPOT.path("intervals", folder)))
    path = data.root("datasets") / "availability" / "spell_quantiles.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        head = ["trace", "provider", "instance", "is_gpu", "nodes", "days", "availability"]
        quantiles = [f"q{level:g}_h" for level in LEVELS]
        writer.writerow([*head, "spell", "count", "mean_h", *quantiles, "source"])
        writer.writerows(rows)


def _rows(table: Path) -> Iterator[list[object]]:
    """Yield two rows a trace that is long enough: its up spells and its down spells."""
    for trace in read_spot_traces(table):
        if trace.end_s < MINIMUM_DAYS * 24 * HOUR_S:
            continue
        spells = trace.spells(trace.nodes)
        ends = spells.up_start_s + spells.up_length_s
        edges = np.sort(np.concatenate([[0.0], spells.up_start_s, ends, [spells.end_s]]))
        down = np.diff(edges)[0::2]
        facts = [trace.name, trace.provider, trace.instance]
        facts += [str(int(not trace.instance.startswith("intel"))), str(trace.nodes)]
        facts += [f"{trace.end_s / HOUR_S / 24:.2f}", f"{spells.availability:.4f}"]
        for kind, lengths in (("up", spells.up_length_s), ("down", down[down > 0])):
            hours = lengths / HOUR_S
            shown = [f"{q:.4g}" for q in np.quantile(hours, np.array(LEVELS) / 100)]
            yield [*facts, kind, hours.size, f"{hours.mean():.5g}", *shown, SOURCE]


if __name__ == "__main__":
    main()
