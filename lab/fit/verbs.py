"""The verbs of ``advisor train`` that fit the constants that ship: read, fit, write, all alike."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from advisor import data
from advisor.collectors import atomic
from advisor.errors import UsageError
from advisor.estimate import DIGITS
from advisor.lab.data import LAMBDA, SIA
from advisor.quantities import QUANTILES
from advisor.records import reads
from advisor.train import folder as model_folder

# Verb -> (folder of ``trained_models``, module with ``fitted``), in the order in which one uses
# the constants of another. Seconds of CPU on 2026-11-22: trained_models/README.md.
FITS: Final = {
    "device-model": ("device_model", "advisor.lab.fit.device"),
    "layout-model": ("layout_model", "advisor.lab.fit.layouts"),
    "memory": ("memory", "advisor.lab.fit.memory"),
    "scaling": ("scaling", "advisor.lab.fit.scaling"),
    "campaigns": ("campaign", "advisor.lab.fit.campaigns"),
    "peers": ("peers", "advisor.lab.fit.peers"),
}
# Folder -> what does not ship and is fitted where it was fetched: into the user's own folder.
_FETCHED: Final = {"device_model": LAMBDA, "scaling": SIA}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFolder:
    """What a module of ``FITS`` makes of measurements."""

    files: Mapping[str, str]  # file name -> content
    metrics: Mapping[str, Any]  # how wrong it is, see ``write``
    told: str = ""  # what is printed of it, beside where it was written


def fit(verb: str, given: Path | None, out: Path | None, day: str | None) -> None:
    """Fit what a verb fits on what ``--data`` names, and write it to its folder."""
    name, module = FITS[verb]
    if out is None and given is None and name in _FETCHED:
        is_more = _FETCHED[name].is_in(data.measurements())
        out = data.writable_models() / name if is_more else None
    stated, folder = model_folder.day_of(day), target(out, name)
    with reads.tables_read() as inputs:
        made: FittedFolder = importlib.import_module(module).fitted(given, stated)
    origin = model_folder.origin(verb, inputs, stated, option("--data", given))
    write(name, folder, origin, made.files, made.metrics)
    typer.echo(f"{folder}: {made.told}" if made.told else f"wrote {folder}")


def option(flag: str, value: str | Path | None) -> list[str]:
    """Return an option as it was given: nothing where it was not."""
    return [] if value is None else [flag, str(value)]


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
    atomic.write_text(folder / model_folder.METRICS, json.dumps(metrics, indent=1) + "\n")
    about = data.root("trained_models") / name / model_folder.ABOUT
    text = about.read_text(encoding="utf-8") if about.is_file() else ""
    atomic.write_text(folder / model_folder.CARD, card_of(name, metrics, text))


def card_of(name: str, metrics: Mapping[str, Any], about: str) -> str:
    """Return ``card.md``: the origin, the text about the model, its metrics as tables."""
    lines = model_folder.heading(name, metrics)
    if about:
        lines += [about.strip(), ""]
    lines += ["## Errors of this fit", ""]
    for title, value in metrics.items():
        if title not in model_folder.ORIGIN:
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


def constants_text(parameters: Any) -> str:
    """Return ``parameters.json`` with constants as ``advisor.answer.fitted`` reads them."""
    fitted = asdict(parameters)
    fitted.pop("is_replayed", None)  # is of a job
    return json.dumps({"schema_version": 1, "parameters": rounded(fitted)}, indent=2) + "\n"


# Intervals from few groups: by how much a deviation known from n of them is to be widened.


COVERAGE: Final = 0.9  # of the intervals that fitted deviations are made for


def widening(groups: int) -> float:
    """Return Student's quantile over the normal one, with as many degrees of freedom as groups.

    A root mean square about zero of n independent normal errors has n of them. The product takes
    its quantile from the normal distribution, so the deviation carries what few groups leave open.

    Examples
    --------
    >>> round(widening(1), 2), round(widening(3), 2), round(widening(1000), 2)
    (3.84, 1.43, 1.0)
    """
    from scipy.stats import t

    return float(t.ppf(0.5 + COVERAGE / 2, groups) / QUANTILES[COVERAGE])


def log_errors(errors: NDArray[np.float64]) -> dict[str, float]:
    """Return rows, mean and median of |ln(predicted / measured)|, as metrics have them."""
    return {
        "rows": int(errors.size),
        "mean_log_error": round(float(errors.mean()), 4),
        "median_log_error": round(float(np.median(errors)), 4),
    }
