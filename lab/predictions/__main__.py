"""Register answers to questions that nobody has measured, and score them once somebody has."""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic

FOLDER: Final = Path(__file__).parent
QUESTIONS: Final = FOLDER / "questions.csv"
_FLAGS: Final = (
    "layers", "hidden", "heads", "kv-heads", "ffn", "vocabulary", "sequence", "batch",
    "experts", "experts-per-token", "stack", "cluster",
)  # fmt: skip


def questions() -> list[dict[str, str]]:
    """Return what is asked: an ``id``, the model's name, and the flags of ``advisor plan``."""
    with QUESTIONS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def words(question: Mapping[str, str]) -> list[str]:
    """Return the command line of a question, without the program."""
    flags = [word for name in _FLAGS if question[name] for word in (f"--{name}", question[name])]
    return ["plan", *flags, "--gated", "--json"]


def answer(question: Mapping[str, str]) -> dict[str, Any]:
    """Ask as a user types, and return the step of the best plan with its 90 % interval [s].

    Raises RuntimeError, with what was said, if there is no answer.
    """
    command = [sys.executable, "-m", "advisor.cli", *words(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{question['id']}: {done.stderr.strip()}")
    plan = json.loads(done.stdout)["plans"][0]
    layout = plan["layout"]
    return {
        "id": question["id"],
        "asked": "advisor " + " ".join(f"'{w}'" if " " in w else w for w in words(question)),
        "devices": plan["devices"],
        "step_s": {name: float(f"{plan['step_time_s'][name]:.5g}")
                   for name in ("value", "low", "high")},
        "layout": {name: layout[name] for name in
                   ("dp", "tp", "pp", "ep", "micro_batch", "zero_stage", "recompute")},
        "memory_gib": plan["memory_gib"],
    }  # fmt: skip


def registered() -> list[Path]:
    """Return the files of answers, the oldest first."""
    return sorted(FOLDER.glob("????-??-??.json"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def score(
    answers: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Return what was answered beside what was measured, a row a measurement.

    ``error`` is relative to the measurement. Raises KeyError if nobody asked for an id, ValueError
    if a step is no positive number.
    """
    by_id = {one["id"]: one["step_s"] for one in answers}
    rows = []
    for one in measured:
        said, true = by_id[one["id"]], float(one["step_s"])
        if not (math.isfinite(true) and true > 0.0):
            raise ValueError(f"{one['id']}: a step of {true} s")
        rows.append({
            "id": one["id"], "measured_s": true, "said_s": said["value"],
            "error": said["value"] / true - 1.0,
            "is_inside": said["low"] <= true <= said["high"], "source": one.get("source", ""),
        })  # fmt: skip
    return rows


def _answer(asked: argparse.Namespace) -> int:
    path = FOLDER / f"{asked.day}.json"
    if path.exists():
        print(f"{path.name} is registered: a prediction is not made twice", file=sys.stderr)
        return 2
    found = [answer(one) for one in questions()]
    record = {"schema_version": 1, "day": asked.day, "coverage": 0.9, "answers": found}
    atomic.write_text(path, json.dumps(record, indent=1) + "\n")
    print(f"{path}: {len(found)} answers, SHA-256 {digest(path)}; write it into CHANGELOG.md")
    return 0


def _score(asked: argparse.Namespace) -> int:
    with asked.measured.open(encoding="utf-8", newline="") as file:
        measured = list(csv.DictReader(file))
    for path in registered():
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = score(record["answers"], measured)
        print(f"answers of {record['day']} ({digest(path)[:12]})")
        for row in rows:
            place = "inside" if row["is_inside"] else "outside"
            print(f"  {row['id']:24}{row['measured_s']:9.4g} s measured{row['said_s']:9.4g} said "
                  f"{100 * row['error']:+6.1f} %, {place}; {row['source']}")  # fmt: skip
        errors = [abs(row["error"]) for row in rows]
        if errors:
            inside = sum(row["is_inside"] for row in rows)
            print(f"  mean {100 * statistics.mean(errors):.1f} %, median "
                  f"{100 * statistics.median(errors):.1f} %, {inside} of {len(rows)} in their "
                  "90 % interval")  # fmt: skip
    return 0


def main() -> int:
    """Answer or score, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("answer", help="ask every question and register the answers")
    verb.add_argument("--day", default=datetime.now(UTC).date().isoformat())
    verb.set_defaults(call=_answer)
    verb = verbs.add_parser("score", help="compare registered answers with measurements")
    verb.add_argument("measured", type=Path, help="CSV: id, step_s, source")
    verb.set_defaults(call=_score)
    asked = parser.parse_args()
    return int(asked.call(asked))


if __name__ == "__main__":
    sys.exit(main())
