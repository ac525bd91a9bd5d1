"""``advisor validate``: score the models against published measurements."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from advisor import data, validation
from advisor.errors import UsageError
from advisor.validation.scores import Scores, Validation


def command(
    protocol: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROTOCOL|TABLE]",
            help="A protocol (none lists them), or a CSV table in the form of a published suite.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--data", help="Measurements laid out like shared/data.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Score the models against published measurements, or your own, whole groups left out."""
    if protocol is None:
        for name, (_, question) in validation.PROTOCOLS.items():
            typer.echo(f"{name:14} {question}")
        return
    if protocol not in validation.PROTOCOLS and (_is_path(protocol) or Path(protocol).exists()):
        from advisor.validation.tables import score_table

        _print(score_table(Path(protocol), data.measurements(folder)), as_json)
        return
    if protocol not in validation.PROTOCOLS:
        raise UsageError(
            f"no protocol named {protocol!r}", hint=f"one of: {', '.join(validation.PROTOCOLS)}"
        )
    result = validation.run(protocol, data.measurements(folder))
    _print(result, as_json)


def _is_path(name: str) -> bool:
    return name.endswith(".csv") or "/" in name


def _print(result: Validation, as_json: bool) -> None:
    typer.echo(json.dumps(result.to_record(), indent=2) if as_json else _text(result))


def _text(result: Validation) -> str:
    lines = [f"{result.protocol}: {result.description}", _HEADER]
    lines += [_line(group.group, group.scores) for group in result.groups]
    lines.append(_line("ALL", result.overall))
    if result.baselines:
        lines.append("baselines")
        lines += [_line(f"  {name}", s) for name, s in result.baselines.items()]
    lines += [f"{name}: {value:.4g}" for name, value in result.figures.items()]
    for note in result.notes:
        lines += textwrap.wrap(f"note: {note}", width=_WIDTH, subsequent_indent="      ")
    return "\n".join(lines)


_WIDTH = 80
_HEADER = (
    f"{'group':32}{'rows':>6}{'MAPE %':>7}{'p50':>7}{'p90':>7}{'bias':>6}{'rank r':>7}{'cover':>7}"
)


def _line(name: str, s: Scores) -> str:
    rank = "" if s.spearman is None else f"{s.spearman:.2f}"
    cover = "" if s.coverage is None else f"{s.coverage:.2f}"
    percent = (
        100 * value for value in (s.mape_fraction, s.median_ape_fraction, s.p90_ape_fraction)
    )
    errors = "".join(f"{value:7.1f}" if value < 1e4 else f"{value:7.0f}" for value in percent)
    return f"{name[:31]:32}{s.rows:6d}{errors}{s.bias:6.2f}{rank:>7}{cover:>7}".rstrip()
