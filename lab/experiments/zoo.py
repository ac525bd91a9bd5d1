"""What the advisor says of scripts as users write them, beside what they do.

Every script of ``tests/zoo`` runs to its end without the advisor, is profiled for a few
seconds, asked for on this machine (``advisor predict --on here``), and runs to its end again: on a
shared host, what is true of one minute is off by a third in the next. Its header says how:

    # zoo: steps=240 args="--epochs 3" minute=yes needs=torch,sklearn workers=2

``steps`` are the true ones of the whole job; with ``ZOO=1`` in the environment the script ends
with ``steps: N``, which must agree. ``needs`` are modules, ``workers`` ranks: under torchrun, with
and without the advisor, or, where the script makes no process group of its own, wrapped by
``advisor profile`` to its end. What is needed is imported once before the true time is taken:
files that nobody has read yet would make the first script of all take seconds longer.

python -m advisor.lab.experiments.zoo --json quiet.json
python -m advisor.lab.experiments.zoo --burners 2 --truth quiet.json --json busy.json

``--foreign`` tries scripts as strangers bring them instead, ``tests/zoo/foreign``: modules, a
notebook, a Makefile's target, endless loops, steps far too large for a laptop, and scripts that
cannot run for a cause that the hint must name. Each is profiled beside what burns and asked for
one GPU, and its header says what is right:

    # foreign: steps=endless
    # foreign: steps=400 call="-m package.train --epochs 4"
    # foreign: steps=400 says="pip install NAME"

python -m advisor.lab.experiments.zoo --foreign --burners 2 --json foreign.json
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from advisor.collectors.derive import MOST_RATIO
from advisor.collectors.watch.host import cpu_model, usable_cpus
from advisor.lab import frame

ROOT = frame.ROOT
SCRIPTS = ROOT / "tests" / "zoo"
FOREIGN = SCRIPTS / "foreign"
# What is called right of a whole job.
TOLERANCE = 0.10
# What a stranger asks about: the GPU that most published steps are of.
GPU = "A100-SXM4-80GB"
_HEADER = re.compile(r"^# zoo:(?P<words>.*)$", re.MULTILINE)
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and what its header says of it."""

    path: Path
    steps: int
    args: tuple[str, ...] = ()
    is_of_a_minute: bool = False
    needs: tuple[str, ...] = ()
    workers: int = 1

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules that it needs and that are not here."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)

    @property
    def is_of_torch(self) -> bool:
        """Whether it trains with PyTorch in one process, and what it needs is here."""
        is_alone = self.path.suffix == ".py" and self.workers == 1
        return is_alone and "torch" in self.needs and not self.missing

    def is_named(self, names: Sequence[str]) -> bool:
        """Whether a part of its name is among some; of none, always."""
        return _is_among(self.path.name, names)

    @property
    def is_wrapped(self) -> bool:
        """Whether only the advisor makes ranks of it."""
        return self.workers > 1 and "init_process_group" not in self.path.read_text("utf-8")

    @property
    def words(self) -> list[str]:
        """The script as ``advisor profile`` takes it: with its launcher, where it has one."""
        own = [str(self.path), *self.args]
        if self.is_wrapped:
            return ["--workers", str(self.workers), *own]
        return own if self.path.suffix == ".py" and self.workers == 1 else ["--", *self.command]

    @property
    def command(self) -> list[str]:
        """The same without the advisor."""
        own = [str(self.path), *self.args]
        if self.workers > 1:
            return frame.torchrun(self.workers, self.path, *self.args)
        return [sys.executable if self.path.suffix == ".py" else "sh", *own]


def _is_among(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part in name for part in parts)


def header(path: Path) -> Script | None:
    """Read a script's header; None where it has none.

    Raises ValueError if it says what is not known, or not how many steps there are.
    """
    found = _HEADER.search(path.read_text(encoding="utf-8"))
    if found is None:
        return None
    said = dict(word.partition("=")[::2] for word in shlex.split(found["words"]))
    if unknown := set(said) - {"steps", "args", "minute", "needs", "workers"}:
        raise ValueError(f"{path.name}: {', '.join(sorted(unknown))}")
    if "steps" not in said:
        raise ValueError(f"{path.name}: no steps")
    return Script(
        path=path,
        steps=int(said["steps"]),
        args=tuple(shlex.split(said.get("args", ""))),
        is_of_a_minute=said.get("minute") == "yes",
        needs=tuple(filter(None, said.get("needs", "").split(","))),
        workers=int(said.get("workers", "1")),
    )


def scripts(folder: Path = SCRIPTS) -> list[Script]:
    """Return the scripts with a header, by name."""
    paths = sorted((*folder.glob("*.py"), *folder.glob("*.sh")))
    return [found for path in paths if (found := header(path)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a script."""

    name: str
    exit_codes: tuple[int, ...] = ()  # of ``profile`` and ``predict``
    low_s: float | None = None
    high_s: float | None = None
    # the length was not found, said so, and was given with ``--total-steps``
    is_length_asked: bool = False
    # the error of ``predict``, where it had no answer; or why the script was left out
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Said):
    """One script: what it did (``true_s`` and the like), and what was said of the whole job."""

    # true_steps, true_s: of the whole job, without the advisor: the mean of before and after; None
    # where that was not run [s]
    true_steps: int
    true_s: float | None = None
    true_spread: float = 1.0  # the longer of the two over the shorter; 1 where it ran once
    # steps, step_s: as profiled [s]
    steps: int | None = None
    confidence: str = ""
    step_s: float | None = None
    delay_fraction: float | None = None
    value_s: float | None = None  # the whole job here, as ``low_s`` and ``high_s`` are [s]

    @property
    def ratio(self) -> float | None:
        """The whole job, said over true."""
        return None if self.value_s is None or not self.true_s else self.value_s / self.true_s

    @property
    def is_right(self) -> bool:
        """Whether the whole job is within the tolerance."""
        return self.ratio is not None and abs(self.ratio - 1.0) <= TOLERANCE

    @property
    def holds(self) -> bool:
        """Whether the interval holds the truth."""
        if self.true_s is None or self.low_s is None or self.high_s is None:
            return False
        return self.low_s <= self.true_s <= self.high_s

    @property
    def is_silently_wrong(self) -> bool:
        """Whether the answer is off and its interval does not say so."""
        return self.ratio is not None and not self.is_right and not self.holds


def run_whole(script: Script, folder: Path) -> tuple[float, int]:
    """Run a script to its end without the advisor; return seconds and its own count of steps.

    Raises RuntimeError if it fails, or counts other steps than its header says.
    """
    command, environment = script.command, {**os.environ, "ZOO": "1", "PATH": script_path()}
    if script.is_wrapped:
        whole = ("--quiet", "--for", "1h", "--steps", str(10**9))
        command = [*frame.ADVISOR, "profile", *whole, *script.words]
        environment |= environment_of(folder / "whole")
    warm_up(script)
    begin = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S,
        check=False,
    )  # fmt: skip
    took_s = time.monotonic() - begin
    # Where Python does not buffer, ranks write into each other's lines, before the lines' ends.
    counted = re.findall(r"steps: (\d+)", done.stdout)
    if done.returncode or not counted:
        raise RuntimeError(f"{script.path.name}: exit {done.returncode}: {done.stderr[-300:]}")
    if int(counted[-1]) != script.steps:
        raise RuntimeError(f"{script.path.name}: {counted[-1]} steps, header says {script.steps}")
    return took_s, int(counted[-1])


def warm_up(script: Script) -> None:
    """Bring the modules that a script needs from the disk into the page cache."""
    words = f"import {', '.join(script.needs)}" if script.needs else ""
    subprocess.run([sys.executable, "-c", words], capture_output=True, check=False)


def ask(script: Script, folder: Path, *, limit_s: float, burners: int = 0) -> Row:
    """Profile a script for a while and ask what the whole job takes here."""
    with frame.burning(burners):
        profiled = advisor(
            folder, "profile", "--quiet", "--json", "--for", f"{limit_s:g}s", *script.words
        )
        row = _profiled(Row(name=script.path.name, true_steps=script.steps), profiled)
        predicted = advisor(folder, "predict", "--on", "here", "--json")
        if predicted.returncode == 1 and "--total-steps" in predicted.stderr:
            row = replace(row, is_length_asked=True)
            given = ("--total-steps", str(script.steps))
            predicted = advisor(folder, "predict", "--on", "here", "--json", *given)
    row = replace(row, exit_codes=(profiled.returncode, predicted.returncode))
    if predicted.returncode:
        return replace(row, said=(predicted.stderr.strip().splitlines() or ["nothing"])[0])
    whole = json.loads(predicted.stdout)["training_time_h"]
    low, value, high = (3600 * whole[name] for name in ("low", "value", "high"))
    return replace(row, low_s=low, value_s=value, high_s=high)


def _profiled(row: Row, done: subprocess.CompletedProcess[str]) -> Row:
    """Return the row with what ``profile`` said; its record comes after the script's output."""
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if not last.startswith("{"):
        return row
    seen = json.loads(last)
    step, work = seen.get("step_time") or {}, seen.get("total_work") or {}
    return replace(
        row, steps=work.get("steps"), confidence=work.get("confidence", ""),
        step_s=step.get("corrected_s"), delay_fraction=step.get("delay_fraction"),
    )  # fmt: skip


def script_path() -> str:
    """Return where a shell script finds its programs: this Python before all others."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def environment_of(folder: Path) -> dict[str, str]:
    """Return the variables with which this checkout's advisor keeps its runs in a folder."""
    # Not the checkout itself: its data folder ``datasets`` hides Hugging Face's package.
    package = folder.parent / "package"
    package.mkdir(parents=True, exist_ok=True)
    if not (package / "advisor").exists():
        (package / "advisor").symlink_to(ROOT / "advisor")
    paths = (str(package), os.environ.get("PYTHONPATH", ""))
    found = {"ADVISOR_RUNS": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # The script runs where this runs, one behind a shell script too.
    found["PATH"] = script_path()
    return found | ({"VIRTUAL_ENV": sys.prefix} if sys.prefix != sys.base_prefix else {})


def advisor(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of this checkout's advisor on the runs in ``folder``, as a user would."""
    return subprocess.run(
        [*frame.ADVISOR, *words], cwd=folder,
        env={**os.environ, **environment_of(folder / "runs")}, capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip


def summary(rows: Sequence[Row]) -> str:
    asked = [row for row in rows if row.true_s is not None]
    right = sum(row.is_right for row in asked)
    spread = statistics.median(row.true_spread for row in asked) if asked else 1.0
    counted = sum(row.steps == row.true_steps for row in asked)
    held = sum(row.holds and not row.is_right for row in asked)
    refused = sum(row.value_s is None for row in asked)
    wrong = [row.name for row in asked if row.is_silently_wrong]
    named = f" ({', '.join(wrong)})" if wrong else ""
    left_out = f", {len(rows) - len(asked)} left out" if len(rows) > len(asked) else ""
    return (
        f"steps right for {counted} of {len(asked)}; whole job within {TOLERANCE:.0%} for {right} "
        f"of {len(asked)}, {held} held, {refused} refused, {len(wrong)} silently wrong{named}"
        f"{left_out}; the same script twice: {spread:.2f} times as long (median)"
    )


def line(row: Row) -> str:
    if row.true_s is None:
        return f"{row.name:24} left out: {row.said}"
    steps = f"{'-' if row.steps is None else row.steps}/{row.true_steps}"
    step = "-" if row.step_s is None else f"{1e3 * row.step_s:.1f}"
    if row.value_s is None or row.low_s is None or row.high_s is None:
        return f"{row.name:24} {steps:>11} {step:>8}  {row.true_s:6.1f} s: {row.said}"
    marks = "right" if row.is_right else "held" if row.holds else "SILENTLY WRONG"
    asked = ", length asked" if row.is_length_asked else f", {row.confidence}"
    return (
        f"{row.name:24} {steps:>11} {step:>8}  {row.value_s:6.1f} ({row.low_s:.1f}-"
        f"{row.high_s:.1f}) / {row.true_s:.1f} s ({row.true_spread:.2f}) = {row.ratio:.2f}  "
        f"{marks}{asked}"
    )


# Scripts as strangers bring them: is there an answer for a GPU, and is a cause named.


_FOREIGN = re.compile(r"^# foreign:(?P<words>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A stranger's script, how it is called, and what is right to say of it."""

    path: Path
    steps: int | None  # of the whole job; None where it is endless
    call: tuple[str, ...]
    says: str = ""  # the hint of a script that cannot run
    is_accelerated: bool = True  # a GPU can run it

    @property
    def name(self) -> str:
        return self.path.relative_to(FOREIGN).as_posix()


def foreign(folder: Path = FOREIGN) -> list[Foreign]:
    """Return the strangers' scripts, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [found for path in paths if (found := _foreign(path, folder)) is not None]


def _foreign(path: Path, folder: Path) -> Foreign | None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    found = _FOREIGN.search(text)
    if found is None:
        return None
    said = dict(word.partition("=")[::2] for word in shlex.split(found["words"]))
    if unknown := set(said) - {"steps", "call", "says", "accelerated"}:
        raise ValueError(f"{path.name}: {', '.join(sorted(unknown))}")
    return Foreign(
        path=path,
        steps=None if said["steps"] == "endless" else int(said["steps"]),
        call=tuple(shlex.split(said.get("call", str(path.relative_to(folder))))),
        says=said.get("says", ""),
        is_accelerated=said.get("accelerated") != "no",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRow(Said):
    """What was said of a stranger's script; ``low_s`` and ``high_s`` are a step's on the GPU [s].

    ``verdict``: "usable" where a GPU's step is answered within ``MOST_RATIO`` and the length is
    right or asked for; "named" where the hint names the cause or a GPU has no use; else why not.
    """

    verdict: str


def ask_for_gpu(script: Foreign, folder: Path, *, limit_s: float, burners: int = 0) -> ForeignRow:
    """Profile a stranger's script beside what burns, and ask for one GPU."""
    place = folder / "there"
    shutil.copytree(FOREIGN, place)
    with frame.burning(burners):
        profiled = advisor(place, "profile", "--for", f"{limit_s:g}s", *script.call)
    asked = ("predict", "--gpu", GPU, "--json")
    predicted = advisor(place, *asked)
    is_asked = "--total-steps" in predicted.stderr
    if is_asked:
        predicted = advisor(place, *asked, "--total-steps", str(script.steps or 1000))
    row = ForeignRow(
        name=script.name,
        verdict="",
        exit_codes=(profiled.returncode, predicted.returncode),
        is_length_asked=is_asked,
        said=_last_words(profiled if profiled.returncode else predicted),
    )
    if predicted.returncode == 0:
        step = json.loads(predicted.stdout)["step_time_s"]
        row = replace(row, low_s=step["low"], high_s=step["high"])
    return replace(row, verdict=_verdict(script, row, predicted.stdout))


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    said = [one for one in lines if one.startswith(("error:", "note:", "hint:"))]
    return " | ".join(said[-2:])


def _verdict(script: Foreign, row: ForeignRow, answer: str) -> str:
    if script.says:
        return "named" if script.says in row.said else "cause not named"
    if row.low_s is None or row.high_s is None:
        is_clear = not script.is_accelerated and "GPU" in row.said
        return "named" if is_clear else "no answer"
    if not script.is_accelerated:
        return "a GPU has no use"
    if script.steps is None and not row.is_length_asked:
        return "length invented"
    return "usable" if 0 < row.low_s < row.high_s <= MOST_RATIO * row.low_s else "too wide"


def foreign_summary(rows: Sequence[ForeignRow], scripts: Sequence[Foreign]) -> str:
    """Count the answers among scripts that can run, the causes among those that cannot."""
    runs = {one.name for one in scripts if one.is_accelerated and not one.says}
    usable = sum(row.verdict == "usable" for row in rows if row.name in runs)
    named = sum(row.verdict == "named" for row in rows if row.name not in runs)
    of = sum(row.name in runs for row in rows)
    return (
        f"usable answer for one {GPU}: {usable} of {of}; cause named: {named} of {len(rows) - of}"
    )


def _measure_foreign(options: argparse.Namespace) -> None:
    asked = [one for one in foreign() if _is_among(one.name, options.names)]
    rows = []
    for script in asked:
        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            limits = {"limit_s": options.seconds, "burners": options.burners}
            rows.append(ask_for_gpu(script, Path(folder), **limits))
        row = rows[-1]
        step = "-"
        if row.low_s is not None and row.high_s is not None:
            step = f"{1e3 * row.low_s:.3g}-{1e3 * row.high_s:.3g} ms"
        said = "" if row.verdict == "usable" else row.said
        print(f"{row.name:24} {row.verdict:16} {step:>20}  {said}", flush=True)
    summed = foreign_summary(rows, asked)
    facts = {"summary": summed, "scripts": [asdict(row) for row in rows]}
    frame.write_json(options.json, {**_circumstances(options), **facts})
    print(summed)


def measure(script: Script, truth: dict[str, float], options: argparse.Namespace) -> Row:
    name = script.path.name
    left_out = Row(name=name, true_steps=script.steps)
    if script.missing:
        return replace(left_out, said=f"needs {', '.join(script.missing)}")
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        place, known = Path(folder), truth.get(name)
        try:
            true = [known or run_whole(script, place)[0]]
            row = ask(script, place, limit_s=options.seconds, burners=options.burners)
            if known is None and not script.is_wrapped:
                true.append(run_whole(script, place)[0])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return replace(left_out, said=str(error))
        return replace(row, true_s=statistics.mean(true), true_spread=max(true) / min(true))


def record(rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    verdicts = ("ratio", "is_right", "holds", "is_silently_wrong")
    return {
        **_circumstances(options),
        "summary": summary(rows),
        "scripts": [asdict(row) | {name: getattr(row, name) for name in verdicts} for row in rows],
    }


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "day": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": {"cpu_model": cpu_model(), "usable_cpus": usable_cpus()},
        "burners": options.burners,
        "profiled_s": options.seconds,
    }


def main() -> None:
    options = frame.options(__doc__, {
        "names": {"nargs": "*", "help": "parts of scripts' names; all by default"},
        "--seconds": (8.0, "to profile each for"), "--burners": (0, "that burn meanwhile"),
        "--minute": (False, "only those of a minute"), "--json": (Path, "write the record here"),
        "--truth": (Path, "earlier record with the true seconds"),
        "--foreign": (False, "strangers' scripts, asked for a GPU, instead"),
    })  # fmt: skip
    if options.foreign:
        _measure_foreign(options)
        return
    truth: dict[str, float] = {}
    if options.truth is not None:
        before = json.loads(options.truth.read_text(encoding="utf-8"))
        truth = {row["name"]: row["true_s"] for row in before["scripts"] if row["true_s"]}
    print(f"{'script':24} {'steps':>11} {'step ms':>8}  whole job, said / true")
    rows = []
    for script in scripts():
        if script.is_named(options.names) and (script.is_of_a_minute or not options.minute):
            rows.append(measure(script, truth, options))
            print(line(rows[-1]), flush=True)
    frame.write_json(options.json, record(rows, options))
    print(summary(rows))
    sys.exit(any(row.is_silently_wrong for row in rows))


if __name__ == "__main__":
    main()
