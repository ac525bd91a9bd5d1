"""What one question passes through: files, record classes, records made, Python calls.

The question is ``advisor recommend`` of the recorded script in ``tests/golden``. It is asked in
this process under ``sys.setprofile``, imports included, with an empty home, a fixed hash seed and
no cache, so that two machines count the same. Only the product's own code is counted: what a
library does inside differs by its version. Comprehensions are no calls, because Python 3.12 makes
none of them.

``python .ci/trip.py`` prints the counts and where most is made; ``--json`` the counts alone.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# At one provider: there a processor is the pick, and no other's card has to be searched.
QUESTION = (
    "recommend", "--run", "tests/golden/run-schema-1", "--epochs", "500000", "--deadline", "12h",
    "--cloud", "aws",
)  # fmt: skip
PRODUCT = ("advisor", "planners", "collectors")
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")


class Trip:
    """Calls by code, and records by class, of what runs while it is on."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.records: Counter[type] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count one call; what makes a record is generated code, which has no file."""
        if event != "call":
            return
        code = frame.f_code
        self.calls[code] += 1
        if code.co_filename == "<string>":  # of a dataclass or a named tuple
            made = frame.f_locals
            if code.co_name == "__init__":
                self.records[type(made["self"])] += 1
            elif "_cls" in made:
                self.records[made["_cls"]] += 1

    def own_calls(self) -> Counter[tuple[str, str]]:
        """Return calls by the product's file and function; what importing runs is left out."""
        found: Counter[tuple[str, str]] = Counter()
        place: dict[str, str | None] = {}
        for code, number in self.calls.items():
            name = code.co_filename
            if name not in place:
                place[name] = own_file(name)
            path = place[name]
            if path and code.co_name != "<module>" and code.co_name not in COMPREHENSIONS:
                found[path, code.co_qualname] += number
        return found

    def own_records(self) -> Counter[str]:
        """Return records by the product's class."""
        return Counter(
            {
                f"{kind.__module__}.{kind.__qualname__}": number
                for kind, number in self.records.items()
                if kind.__module__.partition(".")[0] in PRODUCT
            }
        )

    def counts(self) -> dict[str, int]:
        """Return what the ratchets hold."""
        calls, records = self.own_calls(), self.own_records()
        return {
            "trip_files": len({path for path, _ in calls}),
            "trip_record_classes": len(records),
            "trip_records": sum(records.values()),
            "trip_python_calls": sum(calls.values()),
        }


def own_file(name: str) -> str | None:
    """Return a file of the product below the checkout, through no link; None of all else."""
    inside = os.path.relpath(os.path.realpath(name), ROOT)
    return inside if inside.partition(os.sep)[0] in PRODUCT else None


def travelled() -> Trip:
    """Ask the question here, which must be the first thing that this process does."""
    trip = Trip()
    sys.argv = ["advisor", *QUESTION]
    said = io.StringIO()
    sys.setprofile(trip)
    try:
        with redirect_stdout(said), redirect_stderr(said):
            from advisor.cli import main

            main()
    except SystemExit as end:
        if end.code:
            sys.setprofile(None)
            sys.exit(f"the question failed:\n{said.getvalue()}")
    finally:
        sys.setprofile(None)
    return trip


def settled(home: str) -> dict[str, str]:
    """Return the environment in which every machine counts the same."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {
        "HOME": home, "TMPDIR": home, "COLUMNS": "80", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TRIP": home,
    }  # fmt: skip


def main() -> int:
    """Count in a fresh interpreter, at the root of the checkout."""
    if "TRIP" not in os.environ:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, __file__, *sys.argv[1:]]
            return subprocess.run(command, cwd=ROOT, env=settled(home), check=False).returncode
    wants_json = "--json" in sys.argv
    trip = travelled()
    if wants_json:
        print(json.dumps(trip.counts()))
        return 0
    for name, number in trip.counts().items():
        print(f"{name:24} {number:12,}")
    for title, rows in (("records", trip.own_records()), ("calls", trip.own_calls())):
        print(f"\nmost {title}")
        for what, number in rows.most_common(15):
            print(f"{number:10,}  {what if isinstance(what, str) else ' '.join(what)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
