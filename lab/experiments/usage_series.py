"""Record what the zoo's scripts use: a short run and, apart from it, a whole one of each.

    python -m advisor.lab.experiments.usage_series --out datasets/usage/zoo.jsonl.gz

One line a script: readings of the short run (the first seconds of training, as ``advisor profile``
takes by default) and of the whole run, from the start of the program. Memory counts what processes
share once, as a container's account does. Scripts whose modules are missing are left out.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from advisor.collectors.derive.store import read_recording
from advisor.collectors.format.recording import Reading
from advisor.collectors.watch.host import cpu_model, usable_cpus
from advisor.lab import frame
from advisor.lab.experiments.zoo import Script, advisor, scripts

MIB = 2**20
WHOLE = ("--for", "1h", "--steps", str(10**9))


def series(readings: tuple[Reading, ...]) -> dict[str, list[float]]:
    """Return the readings as columns: time [s], cumulative CPU time [s], memory [MiB]."""
    return {
        "t_s": [round(one.t_s, 3) for one in readings],
        "cpu_s": [round(one.cpu_s, 3) for one in readings],
        "memory_mib": [round((one.pss_bytes or one.rss_bytes) / MIB, 1) for one in readings],
    }


def recorded(script: Script, folder: Path, *words: str) -> dict[str, list[float]]:
    folder.mkdir()
    done = advisor(folder, "profile", "--quiet", "--json", *words, *script.words)
    runs = sorted((folder / "runs").glob("*"))
    if not runs:
        raise RuntimeError(f"{script.path.name}: {done.stderr[-300:]}")
    return series(read_recording(runs[-1]).readings)


def main() -> None:
    asked = frame.options(__doc__, {
        "--out": {"type": Path, "required": True}, "--seconds": (8.0, "of the short run"),
        "names": {"nargs": "*", "help": "parts of scripts' names; all by default"},
    })  # fmt: skip
    rows: list[dict[str, Any]] = []
    for script in scripts():
        name = script.path.name
        if script.missing or not script.is_named(asked.names):
            continue
        with tempfile.TemporaryDirectory(prefix="usage-") as place:
            folder = Path(place)
            try:
                short = recorded(script, folder / "short", "--for", f"{asked.seconds:g}s")
                whole = recorded(script, folder / "whole", *WHOLE)
            except (RuntimeError, OSError) as error:
                print(f"{name}: left out: {error}")
                continue
        rows.append({
            "script": name, "day": dt.datetime.now(dt.UTC).date().isoformat(),
            "cpu": cpu_model(), "cpus": usable_cpus(), "short": short, "whole": whole,
        })  # fmt: skip
        peaks = [max(one["memory_mib"], default=0.0) for one in (short, whole)]
        print(f"{name}: {peaks[0]:.0f} MiB, whole {peaks[1]:.0f} MiB", flush=True)
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
