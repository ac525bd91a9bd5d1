"""``advisor train check``: fit the shipped models again, and say which come out different.

Every folder of ``trained_models`` names the command that made it (``metrics.json``). It is run
once more into an empty folder, and the files are compared byte for byte. On another processor
the last digits of a fit may differ; what differs is shown with its size.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.collectors import atomic, bounded
from advisor.errors import ModelError, UsageError
from advisor.lab.fit.verbs import FITS
from advisor.train.folder import ABOUT, METRICS

# Folder -> the command that fits it.
COMMANDS: Final = {folder: f"advisor train {verb}" for verb, (folder, _) in FITS.items()} | {
    "runs": "advisor train models --data datasets/runs --quiet",
    "runs_cost": "advisor train models --data datasets/runs --target cost_over_anchor --quiet",
}
# Under half a minute of CPU each.
QUICK: Final = ("memory", "scaling", "campaign", "runs", "runs_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What fitting a folder again gave."""

    name: str
    command: str
    differences: tuple[str, ...]  # a line each; empty where every file has the same bytes
    cpu_s: float  # of the fit [s]

    def text(self, *, is_replaced: bool) -> str:
        verdict = "same" if not self.differences else "replaced" if is_replaced else "differs"
        head = f"{self.name:14}{verdict:10}{self.cpu_s:7.1f} s of CPU  {self.command}"
        return "\n".join([head, *(f"  {line}" for line in self.differences)])

    def to_record(self) -> dict[str, Any]:
        return asdict(self) | {"cpu_s": round(self.cpu_s, 1)}


def possible(*, is_quick: bool = False) -> list[str]:
    """Return the models that are fitted again: all, or those of little CPU."""
    return [name for name in COMMANDS if name in QUICK or not is_quick]


def folder_of(name: str) -> Path:
    """Return the folder of a model.

    Raises UsageError if there is none.
    """
    packaged = data.root("trained_models") / name
    for folder in (packaged, Path(name)):
        if folder.is_dir():
            return folder.resolve()
    raise UsageError(f"no model folder {name!r}", hint=f"one of: {', '.join(COMMANDS)}")


def check(folder: Path, day: str | None = None) -> Checked:
    """Fit a folder again; with a day, put the new files in its place under that day.

    Raises ModelError if the folder does not say how it was fitted, or the command fails.
    """
    line = command_of(folder) if day is None else f"{_command(folder)} --day {day}"
    with tempfile.TemporaryDirectory() as made:
        new = Path(made) / folder.name
        seconds = _run(line, new)
        differences = tuple(compare(folder, new))
        if day is not None:
            for file in sorted(new.iterdir()):
                atomic.write_bytes(folder / file.name, file.read_bytes())
    return Checked(name=folder.name, command=line, differences=differences, cpu_s=seconds)


def command_of(folder: Path) -> str:
    """Return the command on a folder's card.

    Raises ModelError if it has none.
    """
    try:
        found = bounded.read_json(folder / METRICS)["command"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{folder} does not say how it was fitted",
            hint=f"fit it again: advisor train check {folder.name} --replace",
        ) from error
    if not isinstance(found, str) or shlex.split(found)[:2] != ["advisor", "train"]:
        raise ModelError(
            f"{folder / METRICS}: {found!r} is not a training command", hint="see card"
        )
    return found


def _command(folder: Path) -> str:
    if folder.name not in COMMANDS:
        raise UsageError(f"no command fits {folder.name!r}", hint=f"one of: {', '.join(COMMANDS)}")
    return COMMANDS[folder.name]


def _run(line: str, out: Path) -> float:
    """Run a training command into a folder, on what ships alone; returns its seconds of CPU."""
    package = Path(data.__file__).resolve().parent
    environment = os.environ | {
        **dict.fromkeys(data.VARIABLES, "1"),
        "ADVISOR_SHARED": "",
        "XDG_DATA_HOME": str(out.parent / "nothing fetched"),
        "PYTHONPATH": os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # -P: the folder of the package is where relative paths begin, not where modules are found.
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "advisor.cli", *shlex.split(line)[1:], "--out", str(out)],
        cwd=data.root("trained_models").parent, env=environment, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        said = [text for text in ended.stderr.strip().splitlines() if text][-2:]
        raise ModelError(f"`{line}` failed: {' '.join(said)}", hint="run it by itself")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(old: Path, new: Path) -> list[str]:
    """Return a line for every file that is not the same in both folders."""
    names = {f.name for f in [*old.iterdir(), *new.iterdir()] if f.is_file()} - {ABOUT}
    found = []
    for name in sorted(names):
        one, other = old / name, new / name
        if not (one.is_file() and other.is_file()):
            found.append(f"{name}: only in {'the folder' if one.is_file() else 'the new fit'}")
        elif one.read_bytes() != other.read_bytes():
            found.append(f"{name}: {_difference(one, other)}")
    return found


def _difference(one: Path, other: Path) -> str:
    if one.suffix != ".json":
        return "other bytes"
    before, after = json.loads(one.read_text()), json.loads(other.read_text())
    pairs = dict(_leaves(before)), dict(_leaves(after))
    changed = [k for k in sorted(pairs[0] | pairs[1]) if pairs[0].get(k) != pairs[1].get(k)]
    sizes = {k: _relative(pairs[0].get(k), pairs[1].get(k)) for k in changed}
    worst = max(changed, key=lambda k: sizes[k], default="")
    if not worst:
        return "written otherwise, the same values"
    share = "" if sizes[worst] == float("inf") else f" ({sizes[worst]:.2g} of it)"
    return (
        f"{len(changed)} values differ, most at {worst}: {pairs[0].get(worst)} was fitted, now "
        f"{pairs[1].get(worst)}{share}"
    )


def _leaves(value: Any, place: str = "") -> Any:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{place}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{place}[{number}]")
    else:
        yield place, value


def _relative(one: Any, other: Any) -> float:
    is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (one, other))
    if not is_number:
        return float("inf")
    return float(abs(one - other) / max(abs(one), abs(other), 1e-300))
