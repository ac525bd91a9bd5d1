"""``advisor validate``: score the models against published measurements."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from advisor import data
from advisor.ask import Drawn, argument, option
from advisor.cli.terminal import check_drawable, show_plot, waiting
from advisor.errors import UsageError
from advisor.lab import score
from advisor.lab.score import stored
from advisor.lab.score.harness import Validation
from advisor.lab.score.scores import Scores
from advisor.records import reads

if TYPE_CHECKING:
    from advisor.show.charts import Chart

# Of very many rows every so many is drawn: more marks than this are one stain.
_MOST_ROWS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate(Drawn):
    """Score the models on published measurements, or your own, with whole groups left out."""

    # fmt: off
    protocol: str | None = argument("A protocol (omit it to list them), or a CSV table in the "
        "form of a published suite.", metavar="[PROTOCOL|TABLE]")
    folder: Path | None = option("Measurements laid out like shared/data.", flags="--data")
    is_blind: bool = option("Also refit and reselect everything without the scored group, and "
        "print both.", default=False, flags="--blind")
    questions: Path | None = option("Write the rows (question, truth, group, unseen) as CSV, and "
        "answer none.")
    answers: Path | None = option("Score another predictor's answers to these rows (CSV: row, "
        "value, low, high).")
    # fmt: on

    def __call__(self) -> None:
        protocol = self.protocol
        if protocol is None:
            for name, (_, question) in score.PROTOCOLS.items():
                typer.echo(f"{name:14} {question}")
            return
        is_table = protocol not in score.PROTOCOLS and (
            _is_path(protocol) or Path(protocol).exists()
        )
        if is_table and self.is_blind:
            raise UsageError(
                "--blind scores a protocol, not a table of your own",
                hint="what had the published rows in sight is printed below the table's scores",
            )
        if protocol not in score.PROTOCOLS and not is_table:
            raise UsageError(
                f"no protocol named {protocol!r}", hint=f"one of: {', '.join(score.PROTOCOLS)}"
            )
        measured = data.measurements(self.folder)
        if self.questions is not None or self.answers is not None:
            self._for_others(protocol, measured, is_table=is_table)
            return
        what = "the table" if is_table else protocol
        with waiting(f"scoring {what}", is_quiet=self.as_json):
            if is_table:
                from advisor.lab.score.tables import score_table

                result = score_table(Path(protocol), measured)
            else:
                with reads.tables_read() as inputs:
                    result = score.run(protocol, measured, is_blind=self.is_blind)
        if not is_table and stored.place_of(protocol, inputs) == stored.fetched():
            typer.echo(
                "with measurements or constants that do not ship: the second column", err=True
            )
        _print(result, self.plot, self.as_json)

    def _for_others(self, name: str, measured: Path, *, is_table: bool) -> None:
        """Write the rows for another predictor, or score what it answered."""
        from advisor.lab.score import harness, tables

        if is_table:
            protocol, rows = tables.asked_table(Path(name), measured)
        else:
            protocol = score.load(name)
            rows = protocol.rows(measured)
        if self.questions is not None:
            written = harness.write_questions(rows, self.questions)
            typer.echo(f"{written:,} rows in {self.questions}", err=True)
        if self.answers is not None:
            theirs = replace(protocol, scores=f"answers of {self.answers.name}", figures=None)
            answers = harness.read_answers(self.answers, rows)
            _print(harness.evaluate(theirs, rows, answers), self.plot, self.as_json)


def _is_path(name: str) -> bool:
    return name.endswith(".csv") or "/" in name


def _print(result: Validation, plot: str | None, as_json: bool) -> None:
    typer.echo(json.dumps(result.to_record(), indent=2) if as_json else _text(result))
    if plot is not None:
        charts = scored_charts(f"Predicted against measured: {result.protocol.name}",
                               *(result.overall.pairs or ((), ())))  # fmt: skip
        check_drawable(
            charts, plot, hint="of this protocol only its scores are known, not its rows"
        )
        show_plot(charts, plot)


def scored_charts(
    title: str, predicted: Sequence[float], measured: Sequence[float]
) -> list[Chart]:
    """Return the chart of scored rows; none where only their scores are known.

    ``predicted``, ``measured``: in one unit, positive.
    """
    from advisor.show.answer_charts import agreement_chart
    from advisor.show.charts import Series

    if not len(measured):
        return []
    every = -(-len(measured) // _MOST_ROWS)
    rows = Series(
        name="rows",
        x=list(map(float, measured[::every])),
        y=list(map(float, predicted[::every])),
        shape="points",
    )
    notes = [f"one of every {every} of {len(measured):,} rows is drawn"] if every > 1 else []
    return [agreement_chart(title, "the protocol's unit", [rows], notes=notes)]


def _text(result: Validation) -> str:
    lines = [f"{result.protocol.name}: {result.protocol.description}"]
    lines += _wrapped("scores", result.scores)
    lines += _wrapped("form", result.protocol.form)
    lines.append(_HEADER)
    lines += [_line(group.group, group.scores) for group in result.groups]
    lines.append(_line("ALL", result.overall))
    lines += _baseline_lines(result)
    lines += [f"{name}: {value:.4g}" for name, value in result.figures.items()]
    lines += _blind_lines(result) if result.blind else []
    if result.protocol.puts_in:
        lines += _wrapped("put in, which no flag says", result.protocol.puts_in)
    for what in result.protocol.seen:
        lines += _wrapped("seen", what)
    for note in result.notes:
        lines += _wrapped("note", note)
    return "\n".join(lines)


def _wrapped(word: str, text: str) -> list[str]:
    return textwrap.wrap(f"{word}: {text}", width=_WIDTH, subsequent_indent=" " * len(word) + "  ")


def _baseline_lines(result: Validation) -> list[str]:
    if not result.baselines:
        return []
    lines = ["baselines"]
    for name, theirs in result.baselines.items():
        lines.append(_line(f"  {name}", theirs))
        if result.ours(name).rows != result.overall.rows:
            lines.append(_line("    ours on the same rows", result.ours(name)))
    words = {"mape_fraction": "mean", "median_ape_fraction": "median", "p90_ape_fraction": "p90"}
    return lines + [
        f"we lose, {loss['group']}: {words[loss['statistic']]} {100 * loss['ours']:.1f} % against "
        f"{100 * loss['theirs']:.1f} % ({loss['baseline']})"
        for loss in result.losses()
    ]


def _blind_lines(result: Validation) -> list[str]:
    """Show the scores as shipped and blind, and their difference, by group."""
    blind = result.blind
    if blind is None:
        return []
    shipped = {group.group: group.scores for group in result.groups}
    lines = [f"{'MAPE %':32}{'shipped':>10}{'blind':>10}{'difference':>12}"]
    lines += [
        _pair(group.group, shipped[group.group], group.scores, "mape_fraction")
        for group in blind.groups
        if blind.changed and group.group in shipped
    ]
    for word, name in (
        ("mean", "mape_fraction"), ("p50", "median_ape_fraction"), ("p90", "p90_ape_fraction"),
    ):  # fmt: skip
        lines.append(_pair(f"ALL {word}", result.overall, blind.overall, name))
    if not blind.changed and not blind.kept:
        lines.append("blind: nothing fitted on the scored group, as shipped")
    for word, texts in (
        ("blind", blind.changed),
        ("blind, but seen", blind.still_seen if blind.still_seen != result.protocol.seen else ()),
        ("not fitted again", blind.kept),
    ):  # fmt: skip
        for text in texts:
            lines += _wrapped(word, text)
    return lines


def _pair(name: str, shipped: Scores, blind: Scores, statistic: str) -> str:
    values = [100 * getattr(s, statistic) for s in (shipped, blind)]
    return f"{name[:31]:32}{values[0]:10.1f}{values[1]:10.1f}{values[1] - values[0]:+12.1f}"


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
    return f"{name[:31]:32}{s.rows:6.0f}{errors}{s.bias:6.2f}{rank:>7}{cover:>7}".rstrip()


VERB = Validate
