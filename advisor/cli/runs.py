"""``advisor runs``: list, show, recover and remove recorded runs; add what real runs took."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import typer

from advisor import ask, catalogue, estimate, learned, records, show, train
from advisor.ask import (
    HOURS,
    LAYOUT,
    OUTPUT,
    SECONDS_WITH_UNIT,
    SETUP,
    USD,
    Drawn,
    Printed,
    Question,
    argument,
    asked,
    option,
)
from advisor.cli.options import group, print_json, put
from advisor.cli.terminal import aligned, check_drawable, show_plot, waiting
from advisor.collectors import derive
from advisor.collectors.errors import printable, shown
from advisor.errors import UsageError
from advisor.quantities import (
    digits,
    hours_interval,
    hours_text,
    percent_text,
    seconds_text,
    usd_interval,
    usd_text,
)
from advisor.records import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence


_NOTE_ONE: Final = "advisor runs actual RUN g5.xlarge --time 3h12m"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsCompare(Drawn):
    """Compare predictions with real runs, and warn where errors drift.

    Runs are recorded by `advisor runs actual` and shown oldest first; each is compared with
    what was predicted before it.
    """

    # fmt: off
    run: str | None = argument("Only this recorded run (default: all of them).", metavar="RUN")
    # fmt: on

    def __call__(self) -> None:
        found = train.read(*derive.local_folders())
        if self.run is not None:
            name = derive.find_run(self.run).name
            found = tuple(one for one in found if one.actual.run == name)
        summary = train.drift(found, learned_at=train.learned_at())
        record: dict[str, Any] = {
            "schema_version": 1,
            "runs": [one.to_row() for one in found],
            "drift": summary.to_record(),
        }
        if self.as_json:
            print_json(record)
        elif not found:
            typer.echo(
                f"no actual run has been recorded yet: note one with `{_NOTE_ONE}`", err=True
            )
        else:
            typer.echo("\n".join([*_table(found), *_verdict(summary)]))
        if self.plot is not None:
            charts = show.compared_charts(record)
            check_drawable(charts, self.plot, hint=f"note what a real run took: {_NOTE_ONE}")
            show_plot(charts, self.plot)


def _table(found: Sequence[train.Comparison]) -> list[str]:
    """Return a line a comparison under a header."""
    rows = [("day", "run", "machines", "predicted", "took", "error", "")]
    for one in found:
        value, bounds = hours_interval(one.predicted_h.to_record())
        machines = f"{one.actual.count} x {one.actual.instance_type}"
        error = percent_text(one.error_fraction, signed=True)
        row = one.noted_at[:10], one.actual.run, machines, f"{value} ({bounds})"
        rows.append((*row, hours_text(one.time_h), error, "" if one.is_inside else "outside"))
    return aligned(rows)


def _verdict(summary: train.Drift) -> list[str]:
    if not summary.looked_at:
        return ["all of them were learned from"]
    inside = summary.looked_at - summary.outside
    lines = [
        f"of the last {summary.looked_at} runs, {inside} ended inside their interval; "
        f"median error {percent_text(summary.median_error or 0.0, signed=True)}"
    ]
    return lines + warning(summary)


def warn_of_drift() -> None:
    """Say on stderr where the latest runs left their intervals too often, and what to do."""
    noted = train.read(*derive.local_folders())
    for line in warning(train.drift(noted, learned_at=train.learned_at())):
        typer.echo(line, err=True)


def warning(summary: train.Drift) -> list[str]:
    """Return what to say of a drift, and what to do; nothing where there is none."""
    if not summary.is_drifting:
        return []

    way = "too long" if (summary.median_error or 0.0) > 0 else "too short"
    return [
        f"warning: {summary.outside} of the last {summary.looked_at} real runs ended outside "
        f"their interval (chance alone: {summary.probability:.2g}); predictions are {way}",
        f"learn from them: {train.RETRAINING}",
    ]


# What says which transformer ran, in which layout and with which software, and on what.
_TRANSFORMER: Final = ("model", "layers", "hidden", "heads", "kv_heads", "ffn", "gated",
                       "vocabulary", "experts", "experts_per_token", "sequence", "batch",
                       "precision")  # fmt: skip
_NO_STEP: Final = UsageError("the step time is missing", hint="give --step-time 5.2s")
_LAYOUT: Final = tuple(n for n in LAYOUT if n not in ("swap", "average_every"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsActual(Printed):
    """Record what a real run took; later estimates learn from it.

    Name a transformer that was never profiled by --model (or --layers, --hidden, --heads), its
    machines by --cluster, and its layout by --tp, --pp, ...; its steps then calibrate `plan` and
    `recommend` for every transformer. With a recorded RUN, --cluster and --batch, three runs on
    different numbers of machines show how the job scales there.
    """

    # fmt: off
    question: Question = asked(_TRANSFORMER, ("cluster",), _LAYOUT, SETUP)
    run: str | None = argument("The recorded run of the same job: its name, part of it, or its "
        "folder; none with --model, or --layers.")
    instance_type: str | None = argument("Instance type it ran on, e.g. g5.xlarge (default: found "
        "from time and cost).")
    time: float | None = option("What the whole job took: 3h12m, 45m or 2d.", HOURS)
    cost: float | None = option("What was billed for it, in USD.", USD)
    step_time: float | None = option("Mean time of an optimizer step, in place of --time: 310ms.",
        SECONDS_WITH_UNIT)
    count: int = option("Machines that it ran on.", default=1)
    provider: str | None = option("Provider, if several use this name.")
    # fmt: on

    def __call__(self) -> None:
        found: train.Comparison | train.StepComparison
        if self.run is None:
            found = _layout_run(self.question, self.step_time)
        elif self.question.cluster.machines is not None:
            found = _cluster_run(self.run, self.question, self.step_time)
        else:
            _refuse_described(self.question)

            found = train.note_run(
                self.run,
                self.instance_type,
                count=self.count,
                provider=self.provider,
                time_h=self.time,
                step_s=self.step_time,
                cost_usd=self.cost,
            )

        text = _layout_text if isinstance(found, train.StepComparison) else _text
        put(found.to_record(), partial(text, found), as_json=self.as_json)  # type: ignore[arg-type]
        warn_of_drift()


def _refuse_described(question: Question) -> None:
    if question.job.is_described:
        raise UsageError(
            "a recorded run cannot be combined with a described model",
            hint="name one of them: RUN, or --model",
        )


def _cluster_run(run: str, question: Question, step_s: float | None) -> train.StepComparison:
    _refuse_described(question)
    if step_s is None:
        raise _NO_STEP
    machines = str(question.cluster.machines)
    return train.note_cluster_run(run, machines, step_s=step_s, batch=question.job.batch)


def _layout_run(question: Question, step_s: float | None) -> train.StepComparison:
    from advisor import api

    if not question.job.is_described:
        raise UsageError(
            "no run is named", hint="name a recorded run, or a model: --model llama.json"
        )
    if question.cluster.machines is None:
        raise UsageError(
            "the machines it ran on are missing", hint="--cluster 4x8xA100-80GB:nvlink@1600Gbps"
        )
    if step_s is None:
        raise _NO_STEP
    return train.note_layout_run(
        api.job_of(question.job, question.setup),
        question.cluster.machines,
        step_s=step_s,
        space=ask.layout_space(question.layout, estimate.SPACE),
    )


def _off_words(error: float) -> str:
    return f"{percent_text(abs(error))} {'over' if error > 0 else 'under'}"


def _inside_words(found: train.Comparison | train.StepComparison) -> str:
    return f"{'inside' if found.is_inside else 'outside'} the interval"


def _layout_text(found: train.StepComparison) -> str:
    known, layout, error = found.predicted_s, found.layout, found.error_fraction
    runs = "this run" if found.known == 1 else f"{found.known} such runs"
    return "\n".join(
        [
            f"{found.name} on {found.machines}: dp {layout.dp} x tp {layout.tp} x pp {layout.pp} "
            f"x cp {layout.cp}, micro-batch {layout.micro_batch}, recompute {layout.recompute}",
            f"step   predicted {digits(known.value)} s ({digits(known.low)}-{digits(known.high)}"
            f"), took {digits(found.step_s)} s: {_off_words(error)}, {_inside_words(found)}",
            f"noted: the next estimates start from {runs}",
        ]
    )


def _text(found: train.Comparison) -> str:
    time, time_range = hours_interval(found.predicted_h.to_record())
    actual, error = found.actual, found.error_fraction
    lines = [
        f"{actual.count} x {actual.instance_type} ({actual.provider})",
        f"time   predicted {time} ({time_range}), took {hours_text(found.time_h)}: "
        f"{_off_words(error)}, {_inside_words(found)}",
    ]
    if actual.cost_usd is not None and found.predicted_usd is not None:
        cost, cost_range = usd_interval(found.predicted_usd.to_record())
        off = found.predicted_usd.value / actual.cost_usd - 1.0
        lines.append(
            f"cost   predicted {cost} ({cost_range}), billed {usd_text(actual.cost_usd)}: "
            f"{_off_words(off)}"
        )
    if found.is_learned_from is False:
        lines.append(
            "noted; no estimate changes, because too much of that time is not steps: note a step, "
            "--step-time 310ms"
        )
    else:
        learning = ", and `advisor train` learns from it" if found.is_learned_from else ""
        lines.append(
            f"noted: a step takes {digits(1000 * actual.step_s)} ms there; the next estimates of "
            f"this job start from it{learning}"
        )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsChoose(Printed):
    """Choose the next configuration to try for a job.

    It learns from the job's own runs and from those of other jobs.

    After a run that failed or timed out, machines that cost more than twice as much per hour come
    first.
    """

    # fmt: off
    job: str = argument("The job, as its runs call it.", ..., metavar="JOB")
    runs: list[Path] | None = option("Files or folders of runs (default: the packaged ones and "
        "your own).", flags="--data")
    fmt: str = option("Format of the runs: auto, or one of those of `advisor runs import`.",
        default="auto", flags="--format")
    top: int = option("Maximum number of configurations to show.", default=5, panel=OUTPUT, min=1)
    # fmt: on

    def __call__(self) -> None:
        with waiting("reading the runs", is_quiet=self.as_json):
            runs = train.read_runs(self.runs, self.fmt)
        known = sorted({record.job.job_id for record in runs})
        if self.job not in known:
            raise UsageError(
                f"no run of a job named {self.job!r}",
                hint=f"one of: {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}",
            )
        with waiting("learning from them", is_quiet=self.as_json):
            found = learned.next_tries(runs, self.job)
        text = partial(_runs_choose_text, found, self.top)
        put(found.to_record(), text, as_json=self.as_json)


def _runs_choose_text(found: learned.NextTries, top: int) -> str:
    lines = [f"{printable(found.job)}: learned from {found.other_jobs} other jobs"]
    if found.failed:
        shown = ", ".join(printable(name) for name in found.failed[:3])
        more = "" if len(found.failed) <= 3 else f" and {len(found.failed) - 3} more"
        lines.append(f"failed on {shown}{more}")
        if any(one.is_too_small for one in found.tries):
            lines.append("machines that cost more than twice as much an hour come first")
    lines.append("ranked by its own run" if found.looks_at_job else "ranked as for every job")
    width = max(len(printable(one.configuration)) for one in found.tries[:top])
    lines.append(f"    {'configuration':{width}}  {'USD/h':>8}  {'cost over best':>14}  note")
    lines += [_line(rank, one, width) for rank, one in enumerate(found.tries[:top], 1)]
    return "\n".join(lines)


def _line(rank: int, one: learned.NextTry, width: int) -> str:
    price = "?" if one.price_usd_per_h is None else f"{one.price_usd_per_h:,.3f}"
    ratio = "?" if one.expected_ratio is None else f"{one.expected_ratio:.2f}"
    note = f"cost {one.cost_usd:,.4g} USD here" if one.cost_usd is not None else ""
    note = note or ("perhaps too small" if one.is_too_small else "")
    name = printable(one.configuration)
    return f"{rank:2}  {name:{width}}  {price:>8}  {ratio:>14}  {note}".rstrip()


_RECORDS: Final = Path("records.jsonl.gz")


_TOLD: Final = 8  # runs of which a line is printed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsImport:
    """Add runs that other tools kept to the records; bad rows are refused."""

    # "\b" keeps a line for each format.
    settings: ClassVar[dict[str, Any]] = {
        "help": "Add runs that other tools kept to the records.\n\nThe format is told from the "
        "file; FORMAT PATH names it.\n\n\b\nFormats:\n"
        + ";\n".join(f"{name}: {one['about']}" for name, one in FORMATS.items())
    }
    # fmt: off
    fmt: str = argument("Format of the runs, where it is not to be told from the file.", ...,
        metavar="[FORMAT]")
    path: Path | None = argument("File or folder to read.")
    out: Path | None = option(f"File to add them to (default: {_RECORDS}).")
    machine: str | None = option("Machines that the runs ran on, if the tracker does not know: "
        "g5.xlarge or '2 x aws:g5.xlarge'.")
    price: float | None = option("Price paid for one of these machines, in USD per hour.", USD)
    # fmt: on

    def __call__(self) -> None:
        path = self.path or Path(self.fmt)
        if self.path is None and self.fmt in FORMATS and not path.exists():
            raise UsageError(
                "the file or folder to import is missing",
                hint=f"advisor runs import {self.fmt} PATH, or advisor runs import PATH",
            )
        fmt = records.kind_of(path) if self.path is None else self.fmt
        runs = records.read_runs_as(fmt, path, _machines(self.machine, self.price))
        target = self.out or _RECORDS
        replaced = records.add_records(target, runs)
        counts = Counter(record.status for record in runs)
        told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        again = f", {replaced} of them again" if replaced else ""
        typer.echo(f"{len(runs)} runs ({told}) of {fmt} in {target}{again}")
        typer.echo("\n".join(records.words_of(run) for run in runs[:_TOLD]))
        noted = train.note_imported(runs)
        for line in noted:
            typer.echo(line)
        nameless = sum(record.configuration[0].instance_type == records.UNKNOWN for record in runs)
        if nameless:
            typer.echo(
                f"note: the machines of {nameless} runs are unknown; add --machine g5.xlarge",
                err=True,
            )
        if not noted:
            typer.echo(f"learn from them: advisor train models --data {target}", err=True)


def _machines(machine: str | None, price: float | None) -> records.Instances | None:
    """Return what the user says of the machines; a price alone is of machines that were seen."""
    if machine is not None:
        return records.named_machines(machine, catalogue.Catalogue.load(), price_usd_per_h=price)
    if price is not None:
        return records.Instances(provider="", instance_type=records.UNKNOWN, price_usd_per_h=price)
    return None


run_name: Final = partial(argument, "Name, part of a name, or folder.", ..., metavar="RUN")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsList(Printed):
    """List the recorded runs, oldest first."""

    def __call__(self) -> None:
        lines = derive.run_lines(derive.list_runs())
        if self.as_json:
            rows = [{**asdict(line), "command": " ".join(line.command)} for line in lines]
            print_json({"schema_version": 1, "runs": rows})
            return
        if lines:
            typer.echo("\n".join(table(lines, _columns())))
        else:
            typer.echo(f"no run in {shown(str(derive.default_run_root()))}", err=True)


def _columns() -> int:
    """Return the terminal's width; a file's lines may have any length."""
    return shutil.get_terminal_size((10_000, 24)).columns


def table(runs: Sequence[derive.RunLine], columns: int) -> list[str]:
    """Return a line a run: name, status, step time, command; cut where the terminal ends."""
    width = max((len(one.run) for one in runs), default=0)
    lines = []
    for one in runs:
        step = f"{seconds_text(one.step_s)}/step" if one.step_s else ""
        command = printable(" ".join(_short(word) for word in one.command))
        line = f"{one.run:{width}}  {one.status:11}  {step:13}  {command}".rstrip()
        lines.append(line if len(line) <= columns else line[: columns - 1] + "…")
    return lines


def _short(word: str) -> str:
    """Return a file's name without its folder; an address as it is."""
    is_path = "/" in word and "://" not in word and " " not in word
    return os.path.basename(word.rstrip("/")) or word if is_path else word


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsShow(Drawn):
    """Show what a run recorded.

    Exit code 3 means that the recording is not good enough to answer from.
    """

    # fmt: off
    run: str = run_name()
    # fmt: on

    def __call__(self) -> None:
        from advisor.errors import NotKnownError

        seen = derive.read_recording(derive.find_run(self.run))
        if self.as_json:
            print_json(derive.summary_record(seen))
        else:
            typer.echo(derive.summary_text(seen, _columns()), nl=False)
        if self.plot is not None:
            charts = show.run_charts(seen)
            check_drawable(
                charts, self.plot, hint="nothing was read or stepped in this run; record another"
            )
            show_plot(charts, self.plot)
        if missing := derive.shortfall_of(seen):
            raise NotKnownError(missing[0], hint=missing[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsRecover:
    """Close a run whose profiler was killed, so that it can be used."""

    # fmt: off
    run: str | None = argument("Name, part of a name, or folder.", metavar="RUN")
    every: bool = option("Close every such run, and delete empty ones.",
        default=False, flags="--all")
    # fmt: on

    def __call__(self) -> None:
        if (self.run is None) != self.every:
            raise UsageError(
                "recover takes a run, or --all", hint="`advisor runs list` shows them"
            )
        if self.run is not None:
            typer.echo(
                derive.summary_text(derive.recover_run(derive.find_run(self.run)), _columns()),
                nl=False,
            )
            return

        found = derive.recover_all()
        for run, what, why in found:
            typer.echo(f"{run}: {what}, {why}")
        if not found:
            typer.echo("every run has ended", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsRemove:
    """Delete a run."""

    # fmt: off
    run: str = run_name()
    # fmt: on

    def __call__(self) -> None:
        path = derive.find_run(self.run)
        derive.remove_run(path)
        typer.echo(f"deleted {printable(str(path))}", err=True)


app = group(
    "List, show, recover and remove recorded runs.",
    {"actual": RunsActual, "compare": RunsCompare, "import": RunsImport, "choose": RunsChoose,
     "list": RunsList, "show": RunsShow, "recover": RunsRecover, "rm": RunsRemove},
)  # fmt: skip
