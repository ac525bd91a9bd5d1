"""What advice on a script promises on this machine, beside what the changed script gains.

    python -m advisor.lab.experiments.cures --json cures.json
    python -m advisor.lab.experiments.cures --json cures.json --again   # more rounds, asked anew
    python -m advisor.lab.experiments.cures --rounds 0    # only whether what is said applies

Every script of ``tests/zoo`` that trains with PyTorch in one process is copied, profiled
with one thread (``OMP_NUM_THREADS=1``, so that threads are something to advise) and asked about
(``advisor advise --on here --json``). Advice that says what to paste as a diff is applied with
``patch``, advice that names an environment variable is set, and what a person would write for some
of the others stands in ``BY_HAND``. The script as it is and with each cure
runs to its end in turns; the gain is one less the ratio of the medians, as the predicted one is
one less ``time_factor``. With ``--json`` every script's rows are kept as soon as it is done, and a
script that is in the file is not run again; with ``--again`` it is profiled and asked about anew,
and its runs are added to those in the file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from advisor.collectors import atomic
from advisor.lab import frame
from advisor.lab.experiments import zoo

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# The goal: predicted within this share of the measured gain, in so many cases, nothing slower.
WITHIN, CASES, SLOWEST = 0.30, 0.80, 1.02
# Gains below this are lost between two runs of one script on a shared machine.
LEAST_GAIN = 0.05
# What a person writes where the advice is no patch: script, cure, and lines before and after.
BY_HAND: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("digits_classifier.py", "batch"): (
        ('"--batch-size", type=int, default=64', '"--batch-size", type=int, default=128'),
    ),
    ("epochs_break.py", "batch"): (
        ("batch_size=32", "batch_size=64"),
        ("i >= self.args.max_batches", "i >= self.args.max_batches // 2"),
    ),
    ("imagenet_style.py", "batch"): (
        ('{"batch_size": args.batch_size,', '{"batch_size": 2 * args.batch_size,'),
    ),
    ("notebook_export.py", "batch"): (("batch_size = 64", "batch_size = 128"),),
    ("vae.py", "batch"): (("default=128", "default=256"),),
    ("vae.py", "loader-workers"): (
        ("args.batch_size, shuffle=True)", "args.batch_size, shuffle=True, num_workers=1)"),
    ),
    ("vae.py", "keep-samples"): (
        (
            "train_loader = DataLoader(Boxes(4096),",
            "boxes = Boxes(4096)\nkept = [boxes[i] for i in range(len(boxes))]\n"
            "train_loader = DataLoader(kept,",
        ),
    ),
    ("word_rnn.py", "batch"): (
        ('"--batch_size", type=int, default=20', '"--batch_size", type=int, default=40'),
    ),
}
_VARIABLE = re.compile(r"[A-Z_]+=\w+")
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cure on one script."""

    script: str
    cure: str
    how: str  # as it was applied
    predicted: float  # share of the whole job's time that is saved
    measured: float | None = None  # the same, of medians over the rounds
    # before_s, after_s: whole runs in turns [s]
    before_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()
    load: float = 0.0  # of the machine, while the last was run

    @property
    def is_near(self) -> bool:
        """Whether the promise is within the goal of what was gained."""
        return self.measured is not None and (
            abs(self.predicted - self.measured) <= WITHIN * abs(self.measured)
        )


def main(argv: Sequence[str] | None = None) -> int:
    args = frame.options(__doc__, {
        "--only": {"action": "append", "default": [], "help": "a script; repeatable"},
        "--rounds": 5, "--limit": (15.0, "seconds of profiling"), "--json": Path,
        "--again": (False, "add rounds to those in the file"),
    }, argv)  # fmt: skip
    rows = kept(args.json)
    for row in () if args.again else rows:
        print(line(row), flush=True)
    done = set() if args.again else {row.script for row in rows}
    failed = []
    for script in zoo.scripts():
        name = script.path.name
        if name in done or (args.only and name not in args.only) or not script.is_of_torch:
            continue
        before = [row for row in rows if row.script == name]
        found = []
        try:
            with tempfile.TemporaryDirectory() as folder:
                for case in cases(script, Path(folder), args.rounds, args.limit):
                    found.append(with_runs_of(case, before))
                    print(line(found[-1]), flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:  # the others go on
            failed.append(name)
            found = before
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        rows = [*(row for row in rows if row.script != name), *found]
        if args.json:
            text = json.dumps([asdict(row) for row in rows], indent=1) + "\n"
            atomic.write_text(args.json, text)
    print(summary(rows))
    return 1 if failed else 0


def kept(path: Path | None) -> list[Case]:
    """Return the rows of an earlier run of this command."""
    if path is None or not path.exists():
        return []
    rows = json.loads(path.read_text())
    pairs = ("before_s", "after_s")
    return [Case(**{**row, **{name: tuple(row[name]) for name in pairs}}) for row in rows]


def with_runs_of(case: Case, before: Sequence[Case]) -> Case:
    """Return the case with the runs of the same one that were made before."""
    same = [one for one in before if (one.cure, one.how) == (case.cure, case.how)]
    before_s = tuple(s for one in (*same, case) for s in one.before_s)
    after_s = tuple(s for one in (*same, case) for s in one.after_s)
    if not before_s:
        return case
    gained = 1.0 - statistics.median(after_s) / statistics.median(before_s)
    return replace(case, measured=gained, before_s=before_s, after_s=after_s)


def cases(script: zoo.Script, folder: Path, rounds: int, limit_s: float) -> Iterator[Case]:
    """Profile a copy, ask for advice, and run it with each piece of it."""
    own = folder / script.path.name
    shutil.copy(script.path, own)
    zoo.warm_up(script)
    os.environ.update(ONE_THREAD)
    words = (str(own), *script.args)
    zoo.advisor(folder, "profile", "--quiet", "--for", f"{limit_s:g}s", *words)
    asked = zoo.advisor(folder, "advise", "--on", "here", "--json")
    if asked.returncode:
        print(f"{script.path.name}: {asked.stderr.strip()}", file=sys.stderr)
        return
    for one in json.loads(asked.stdout)["advice"]:
        predicted = 1.0 - one["time_factor"]
        applied = apply(one["how"]["text"], own, one["name"])
        if applied is None:
            yield Case(script=own.name, cure=one["name"], how="by hand", predicted=predicted)
            continue
        how, changed, variables = applied
        before, after = in_turns(own, changed, variables, script.args, rounds)
        ratio = statistics.median(after) / statistics.median(before) if rounds else None
        yield Case(
            script=own.name, cure=one["name"], how=how, predicted=predicted,
            measured=None if ratio is None else 1.0 - ratio,
            before_s=tuple(before), after_s=tuple(after), load=os.getloadavg()[0],
        )  # fmt: skip


def apply(text: str, script: Path, name: str) -> tuple[str, Path, dict[str, str]] | None:
    """Return how advice is applied, the script to run and its variables; None by hand alone.

    Raises RuntimeError if the patch does not apply.
    """
    if _VARIABLE.fullmatch(text):
        variable, _, value = text.partition("=")
        return "environment", script, {variable: value}
    edits = BY_HAND.get((script.name, name), ())
    if not text.startswith("--- ") and not edits:
        return None
    folder = script.parent / name
    folder.mkdir()
    shutil.copy(script, folder / script.name)
    if not text.startswith("--- "):
        _edit(folder / script.name, edits)
        return "by hand", folder / script.name, {}
    done = subprocess.run(
        ["patch", "-p1", "--fuzz=0"], cwd=folder, input=text, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script.name}, {name}: {done.stdout}{done.stderr}")
    return "patch", folder / script.name, {}


def _edit(script: Path, edits: Sequence[tuple[str, str]]) -> None:
    """Write what a person would; raises RuntimeError if the script has changed since."""
    text = script.read_text(encoding="utf-8")
    for before, after in edits:
        if text.count(before) != 1:
            raise RuntimeError(f"{script.name}: {before!r} is not there once")
        text = text.replace(before, after)
    atomic.write_text(script, text)


def in_turns(
    before: Path, after: Path, variables: dict[str, str], args: Sequence[str], rounds: int
) -> tuple[list[float], list[float]]:
    """Return whole runs of both, in turns, the first of each pair in turn too [s]."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for is_after in frame.in_turns(number):
            script, given = (after, variables) if is_after else (before, {})
            found[is_after].append(run_s(script, args, given))
    return found[False], found[True]


def run_s(script: Path, args: Sequence[str], variables: dict[str, str]) -> float:
    """Run a script to its end; return how long that took [s].

    Raises RuntimeError if it fails.
    """
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script), *args], cwd=script.parent,
        env={**os.environ, **ONE_THREAD, **variables}, capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script}: exit {done.returncode}: {done.stderr[-300:]}")
    return time.monotonic() - begin


def line(case: Case) -> str:
    measured = "" if case.measured is None else f"{case.measured:.1%}"
    return (
        f"| {case.script} | {case.cure} | {case.how} | {case.predicted:.1%} | {measured} | "
        f"{case.load:.1f} |"
    )


def summary(rows: Sequence[Case]) -> str:
    """Return how many promises were kept, and what was slowed down."""
    tried: list[Any] = [row for row in rows if row.measured is not None]
    large = [row for row in tried if max(row.predicted, row.measured) >= LEAST_GAIN]
    near = sum(row.is_near for row in large)
    points = [100 * abs(row.predicted - row.measured) for row in tried]
    by_cure = [
        f"{cure} {statistics.mean(row.predicted for row in tried if row.cure == cure):.1%} said, "
        f"{statistics.mean(row.measured for row in tried if row.cure == cure):.1%} gained"
        for cure in sorted({row.cure for row in tried})
    ]
    slower = [f"{row.script}: {row.cure}" for row in tried if 1.0 - row.measured > SLOWEST]
    return (
        f"{len(tried)} cures tried on {len({row.script for row in tried})} scripts; of the "
        f"{len(large)} of {LEAST_GAIN:.0%} or more, {near} were promised within {WITHIN:.0%} of "
        f"the gain (goal: {CASES:.0%}); median {statistics.median(points or [0.0]):.1f} points "
        f"off; on average {', '.join(by_cure) or 'nothing'}; slower by more than "
        f"{SLOWEST - 1:.0%}: {', '.join(slower) or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
