"""Size of the page of ``advisor report``, and how soon it can be used in headless Chromium.

    python -m advisor.lab.speed.report_page [--tries N] [--json]

Two pages: a recorded run (``tests/golden``), and a described pipeline of 32 layers. From the start
of the navigation to a file until time against cost is painted, and until the whole page is:
each try in a browser context of its own. Median and slowest, and what the page's scripts, styles
and layout took of a processor, which other programs on the machine change less.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from advisor.lab import frame

sys.path.insert(0, str(frame.ROOT / "tests"))
from browser import browser, opened
from report_pages import PIPELINE, RECORDED, data_of

from advisor.report.page import answer_page

MARKS = {"front-plot": "first chart", "ready": "whole page"}


def measured(started: Any, path: Path, tries: int) -> dict[str, list[float]]:
    """Return the seconds until each mark of every try, and the processor's of the page."""
    found: dict[str, list[float]] = {name: [] for name in (*MARKS, "processor")}
    for _ in range(tries):
        with opened(started, path) as seen:
            for mark in MARKS:
                entry = f"performance.getEntriesByName('advisor:{mark}')[0]"
                seen.page.wait_for_function(entry)
                found[mark].append(seen.page.evaluate(f"{entry}.startTime") / 1e3)
            tools = seen.page.context.new_cdp_session(seen.page)
            tools.send("Performance.enable")
            read = {
                one["name"]: one["value"]
                for one in tools.send("Performance.getMetrics")["metrics"]
            }
            found["processor"].append(read["ProcessTime"])
    return found


def main() -> None:
    given = frame.options(__doc__, {"--tries": 7, "--json": False})
    rows: list[dict[str, Any]] = []
    with browser() as started, tempfile.TemporaryDirectory() as folder:
        for name, asked in (("recorded run", RECORDED), ("described pipeline", PIPELINE)):
            path = Path(folder) / f"{name.split()[0]}.html"
            path.write_text(answer_page(data_of(asked)), encoding="utf-8")
            times = measured(started, path, given.tries)
            rows.append({"page": name, "bytes": path.stat().st_size, "seconds": times})
    if given.json:
        print(json.dumps({"rows": rows, "where": frame.load()}, indent=2))
        return
    for row in rows:
        said = ", ".join(
            f"{name} {statistics.median(row['seconds'][mark]):.2f} s "
            f"(at most {max(row['seconds'][mark]):.2f})"
            for mark, name in MARKS.items()
        )
        spent = statistics.median(row["seconds"]["processor"])
        print(f"{row['page']:20} {row['bytes'] / 1e6:.2f} MB; after the start: {said}; "
              f"{spent:.2f} CPU-s of the page's process")  # fmt: skip
    print(frame.load())


if __name__ == "__main__":
    main()
