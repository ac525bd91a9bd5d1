"""Size of the page of ``advisor report``, and how soon it can be used in headless Chromium.

    python benchmarks/report_page.py [--tries N] [--json]

Two pages: a recorded run (``tests/golden``), and a described pipeline of 32 layers. From the start
of the navigation to a file on disk until texts and tables stand, and until every chart answers:
each try in a browser context of its own, Plotly's script unpacked anew. Median and slowest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import browser, opened
from report_pages import PIPELINE, RECORDED, data_of

from advisor.report.page import page, plotly

MARKS = ("advisor:words", "advisor:ready")


def measured(started: Any, path: Path, tries: int) -> dict[str, list[float]]:
    """Return the seconds until each mark, of every try."""
    found: dict[str, list[float]] = {mark: [] for mark in MARKS}
    for _ in range(tries):
        with opened(started, path) as seen:
            for mark in MARKS:
                at_ms = seen.page.evaluate(f"performance.getEntriesByName({mark!r})[0].startTime")
                found[mark].append(at_ms / 1e3)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    with browser() as started, tempfile.TemporaryDirectory() as folder:
        for name, asked in (("recorded run", RECORDED), ("described pipeline", PIPELINE)):
            path = Path(folder) / f"{name.split()[0]}.html"
            path.write_text(page(data_of(asked)), encoding="utf-8")
            times = measured(started, path, given.tries)
            rows.append({
                "page": name, "bytes": path.stat().st_size, "plotly_bytes": len(plotly()[1]),
                **{f"{mark.split(':')[1]}_s": seconds for mark, seconds in times.items()},
            })  # fmt: skip
    where = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    if given.json:
        print(json.dumps({"rows": rows, "where": where}, indent=2))
        return
    for row in rows:
        print(
            f"{row['page']:20} {row['bytes'] / 1e6:.2f} MB; tables after "
            f"{statistics.median(row['words_s']):.2f} s (at most {max(row['words_s']):.2f}), "
            f"charts after {statistics.median(row['ready_s']):.2f} s "
            f"(at most {max(row['ready_s']):.2f})"
        )
    print(where)


if __name__ == "__main__":
    main()
