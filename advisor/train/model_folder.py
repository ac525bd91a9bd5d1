"""The one form in which a fitted model is kept: its files, ``metrics.json`` and ``card.md``.

``metrics.json`` begins with where the model comes from: ``command`` (what was run, whole),
``day``, and ``inputs`` (every table that was read and the SHA-256 of its normalised content).
Running that command again writes the same bytes: fits have no random part without a seed, rows
are sorted, and numbers are rounded to ``DIGITS`` significant digits, fewer than the fits have
converged to. ``advisor train check`` does run it again and compares.

``card.md`` says the same to a reader: origin, what the model is (``about.md`` of the packaged
folder, written by hand, without figures of the fit), and the metrics as tables.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from advisor import data
from advisor.collectors import atomic
from advisor.errors import UsageError
from advisor.ways.parameters import DIGITS

SCHEMA_VERSION: Final = 1
ABOUT: Final = "about.md"
CARD: Final = "card.md"
METRICS: Final = "metrics.json"
ORIGIN: Final = ("schema_version", "command", "day", "inputs")  # of ``metrics.json``

Day = Annotated[
    str | None,
    typer.Option(
        "--day", help="Day of the fit as the card states it, YYYY-MM-DD (default: today)."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write to (default: the packaged one).")
]


def origin(
    verb: str, inputs: Mapping[str, str], day: str | None, given: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what ``metrics.json`` of a model begins with that is fitted now.

    ``command`` can be run again; ``given`` are its options that change the result (``option``),
    not the folder that it writes to. Raises UsageError if the day is none.
    """
    stated = day_of(day)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["advisor", "train", verb, *given, "--day", stated]),
        "day": stated,
        "inputs": dict(sorted(inputs.items())),
    }


def option(flag: str, value: str | Path | None) -> list[str]:
    """Return an option as it was given: nothing where it was not."""
    return [] if value is None else [flag, str(value)]


def day_of(text: str | None) -> str:
    """Return a day in its one form; today for None.

    Raises UsageError if the text is no day.
    """
    if text is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(
            f"cannot read {text!r} as a day", hint="write it as 2026-11-22"
        ) from error


def target(out: Path | None, name: str) -> Path:
    """Return the folder to write to, made if need be: a long fit must not end in a refusal.

    Raises UsageError if it is a file, or cannot be made or written to.
    """
    folder = out or data.root("trained_models") / name
    if folder.suffix == ".json" or (folder.exists() and not folder.is_dir()):
        raise UsageError(
            f"{folder} is not a folder", hint="--out names the folder of the model's files"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(folder / ".writable", "")
        (folder / ".writable").unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}", hint="name another with --out"
        ) from error
    return folder


def write(
    name: str,
    folder: Path,
    origin: Mapping[str, Any],
    files: Mapping[str, str],
    metrics: Mapping[str, Any],
) -> None:
    """Write a model's files, metrics and card into a folder, each file whole.

    ``metrics`` say how wrong it is: numbers, tables of numbers (mappings), rows (lists of
    mappings).
    """
    metrics = {**origin, **metrics}
    for file, content in files.items():
        atomic.write_text(folder / file, content)
    atomic.write_text(folder / METRICS, json.dumps(metrics, indent=1) + "\n")
    about = data.root("trained_models") / name / ABOUT
    text = about.read_text(encoding="utf-8") if about.is_file() else ""
    atomic.write_text(folder / CARD, card(name, metrics, text))


def heading(name: str, metrics: Mapping[str, Any]) -> list[str]:
    """Return the first lines of a card; what was fitted in memory alone has no origin."""
    if "command" not in metrics:
        return [f"# {name}", ""]
    return [
        f"# {name}",
        "",
        f"Fitted on {metrics['day']} by `{metrics['command']}`; `advisor train check {name}` runs "
        "that again and compares.",
        "",
        "| input | SHA-256 of its rows |",
        "|---|---|",
        *(f"| {table} | `{digest}` |" for table, digest in sorted(metrics["inputs"].items())),
        "",
    ]


def card(name: str, metrics: Mapping[str, Any], about: str) -> str:
    """Return ``card.md``: the origin, the text about the model, its metrics as tables."""
    lines = heading(name, metrics)
    if about:
        lines += [about.strip(), ""]
    lines += ["## Errors of this fit", ""]
    for title, value in metrics.items():
        if title not in ORIGIN:
            lines += _shown(title, value)
    return "\n".join(lines).rstrip() + "\n"


def _shown(name: str, value: Any) -> list[str]:
    title = name.replace("_", " ")
    if isinstance(value, Mapping) and all(isinstance(v, Mapping) for v in value.values()):
        value = [{title: key, **row} for key, row in value.items()]
    if isinstance(value, Mapping):
        value = [{title: key, "value": number} for key, number in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        columns = list(value[0])
        rows = [[_text(row.get(column)) for column in columns] for row in value]
        heads = [column.replace("_", " ") for column in columns]
        return [
            f"{title.capitalize()}:", "", f"| {' | '.join(heads)} |",
            f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in rows), "",
        ]  # fmt: skip
    return [f"{title.capitalize()}: {_text(value)}", ""]


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Return numbers, and those of mappings and sequences, to some significant digits."""
    if isinstance(value, Mapping):
        return {name: rounded(part, digits) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return value
