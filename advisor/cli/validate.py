"""``advisor validate``: score the models against published measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from advisor import data, validation
from advisor.errors import UsageError
from advisor.validation.scores import Scores, Validation


def command(
    protocol: Annotated[str | None, typer.Argument(help="Which; none lists them.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--data", help="Measurements laid out like shared/data.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Score the models against published measurements, whole groups left out."""
    if protocol is None:
        for name, (_, question) in validation.PROTOCOLS.items():
            typer.echo(f"{name:14} {question}")
        return
    if protocol not in validation.PROTOCOLS:
        raise UsageError(
            f"no protocol named {protocol!r}", hint=f"one of: {', '.join(validation.PROTOCOLS)}"
        )
    if folder is None and protocol in validation.ON_OUR_RUNS:
        folder = data.root("datasets")
    if folder is None:
        shared = data.shared()
        if shared is None:
            raise UsageError(
                "the measurements are not here",
                hint="name their folder with --data, or set ADVISOR_SHARED",
            )
        folder = shared / "data"
    result = validation.run(protocol, folder)
    typer.echo(json.dumps(result.to_record(), indent=2) if as_json else _text(result))


def _text(result: Validation) -> str:
    lines = [f"{result.protocol}: {result.description}", _HEADER]
    lines += [_line(group.group, group.scores) for group in result.groups]
    lines.append(_line("ALL", result.overall))
    lines += [_line(f"baseline: {name}", s) for name, s in result.baselines.items()]
    lines += [f"{name}: {value:.4g}" for name, value in result.figures.items()]
    return "\n".join(lines + [f"note: {note}" for note in result.notes])


_HEADER = f"{'group':40}{'rows':>6}{'MAPE %':>8}{'p50':>7}{'p90':>7}{'bias':>7}{'cover':>7}"


def _line(name: str, s: Scores) -> str:
    cover = "" if s.coverage is None else f"{s.coverage:7.2f}"
    return (
        f"{name[:39]:40}{s.rows:6d}{100 * s.mape_fraction:8.1f}{100 * s.median_ape_fraction:7.1f}"
        f"{100 * s.p90_ape_fraction:7.1f}{s.bias:7.2f}{cover}"
    )
