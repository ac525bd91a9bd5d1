"""``advisor gate``, ``export``, ``report`` and ``ui``: answers handed to others."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import typer

from advisor import (
    answer,
    ask,
    catalogue,
    collectors,
    estimate,
    export,
    gate,
    jobs,
    report,
    simulate,
    ui,
    words,
)
from advisor.ask import (
    CLUSTER,
    CONSTRAINTS,
    JOB,
    LAYOUT,
    OUTPUT,
    PRICES,
    SETUP,
    Printed,
    Question,
    argument,
    asked,
    option,
)
from advisor.cli.options import predictor_of, print_json, put, run_argument, with_run
from advisor.cli.terminal import waiting
from advisor.collectors import atomic
from advisor.errors import UsageError

# What a question has for choosing among rows: a gate names its machines.
_NOT_ASKED: Final = ("spot", "mixed", "gain", "top", "probes", "here_price", "checkpoints")
_LIMITS: Final = tuple(name for name in CONSTRAINTS if name not in _NOT_ASKED)
_LARGEST: Final = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Printed):
    """Judge a submission: whether the job fits its machines and keeps its limits.

    Exit code 0 means that the submission passes. Exit code 3 means that it is refused, and shows
    what would pass. A SkyPilot task names its job in its envs (ADVISOR_RUN: NAME), a batch script
    in a line `#ADVISOR run=NAME`.
    """

    settings: ClassVar[dict[str, Any]] = {
        "context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": False}
    }
    # fmt: off
    question: Question = asked(
        JOB, _LIMITS, ("completion", "cluster_price"), PRICES, LAYOUT, SETUP)
    sbatch_arguments: list[str] | None = argument("With --sbatch: the arguments of sbatch.",
        metavar="[-- SBATCH-ARGS...]")
    on: str | None = option("Machine type to judge: g5.xlarge or aws:g5.xlarge.")
    count: int = option("Number of machines, with --on.", default=1, min=1)
    skypilot: str | None = option("SkyPilot task to judge; - reads standard input.",
        metavar="FILE")
    sbatch: bool = option("Judge what sbatch would submit with SBATCH-ARGS.", default=False)
    slurm_options: str | None = option("JSON of sbatch's options to judge, from Slurm's "
        "cli_filter; - reads standard input.", metavar="FILE")
    partition: list[str] | None = option("What a machine of a Slurm partition is: "
        "gpu=8xA100-80GB:nvlink@200Gbps, or cloud=p4d.24xlarge; may be repeated, the first is the "
        "default partition.", metavar="NAME=MACHINE")
    strict: bool = option("Refuse a SkyPilot or Slurm submission that cannot be judged.",
        default=False)
    # fmt: on

    def __call__(self) -> None:
        named = (self.on, self.skypilot, self.sbatch or None, self.slurm_options)
        if sum(one is not None for one in named) != 1:
            raise UsageError(
                "name one thing to judge: --on, --skypilot, --sbatch or --slurm-options",
                hint="--on aws:p4d.24xlarge --count 2, or --sbatch -- train.sbatch",
            )
        if self.sbatch_arguments and not self.sbatch:
            raise UsageError(
                f"arguments that only --sbatch takes: {self.sbatch_arguments[0]}",
                hint="leave them out",
            )

        def read(known: catalogue.Catalogue) -> gate.Submission:
            if self.skypilot is not None:
                file = "task.yaml" if self.skypilot == "-" else self.skypilot
                return gate.read_task(_text(self.skypilot), known, Path(file))
            return self._slurm()

        with waiting("judging the submission", is_quiet=self.as_json):
            if self.on is None:
                found = gate.judge_submission(read, self.question, is_strict=self.strict)
            else:  # what keeps named machines from being judged is an error
                asked = gate.AskedMachines.named(self.on, self.count, self.question.completion)
                found = gate.judge(lambda _: asked, self.question)
        record = found.to_record()
        put(record, partial(words.text, record), as_json=self.as_json)
        if not found.passes:
            raise typer.Exit(3)

    def _slurm(self) -> gate.Submission:
        known = gate.parse_partitions(self.partition or [])
        folder = Path.cwd()
        if self.slurm_options is None:
            given = gate.read_command(self.sbatch_arguments or [], os.environ, folder)
        else:
            given = _json(_text(self.slurm_options))
        return gate.read_submission(
            given, os.environ, known, folder=folder,
            price_usd_per_device_h=self.question.cluster.price_usd_per_device_h,
        )  # fmt: skip


def _text(file: str) -> str:
    """Return the text of a file, or of standard input.

    Raises UsageError if it cannot be read, or is too large.
    """
    try:
        if file == "-":
            found = sys.stdin.read(_LARGEST + 1)
        else:
            with Path(file).open(encoding="utf-8") as stream:
                found = stream.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}", hint="name a text file, or -") from error
    if len(found) > _LARGEST:
        raise UsageError(f"{file} is too large", hint=f"give at most {_LARGEST:,} characters")
    return found


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the options: {error}", hint="give JSON") from error
    if not isinstance(found, dict):
        raise UsageError("the options are no JSON object", hint='{"nodes": "2", "argv": [...]}')
    return found


_STDOUT: Final = "-"  # in place of a file to write


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(Printed):
    """Write row N of the recommendation as a file that a tool runs.

    Exit code 3 means that nothing satisfies the constraints, or no framework runs the layout.
    """

    # fmt: off
    question: Question = asked(JOB, CONSTRAINTS, PRICES, LAYOUT, SETUP)
    row: int | None = argument("Row (default: the best value).", metavar="N")
    to: str | None = option("Tool to write for: skypilot, dstack, kubernetes, kubeflow, "
        "sagemaker, vertex, azureml, slurm, torchrun, accelerate, deepspeed or megatron. By "
        "default: the first that rents the row.", metavar="TARGET")
    output: str | None = option("File or FOLDER/ to write (default, and for -: print the file).",
        flags="-o --output", metavar="PATH")
    force: bool = option("Overwrite files that are no earlier export.", default=False)
    answer: Path | None = option("Answer of `recommend --json` to take the row from, instead of "
        "asking.", flags="--from", metavar="FILE")
    values: list[str] | None = option("A value that only you know, such as image=...; may be "
        "repeated.", flags="--set", metavar="NAME=VALUE")
    # fmt: on

    def __call__(self) -> None:
        output = None if self.output == _STDOUT else self.output
        given = _values(self.values or [])
        if self.to is not None:
            # A wrong name is said before anything is ranked.
            export.target_of(self.to).filled(given)
        with waiting("pricing the job on every offer", is_quiet=self.as_json):
            made = self._exported(given)
        if self.as_json:
            print_json(made.to_record())
        elif output is None:
            typer.echo(next(iter(made.files.values())), nl=False)
        if output is not None:
            is_folder = output.endswith(os.sep)
            paths = export.write(made, Path(output), is_folder=is_folder, force=self.force)
            for path in paths.values():
                typer.echo(f"wrote {path}", err=True)
            made = made.placed(paths)
        if not self.as_json:
            for note in made.notes:
                typer.echo(f"note: {note}", err=True)
            typer.echo(f"run: {made.run}", err=True)

    def _exported(self, given: dict[str, str]) -> export.Exported:
        """Return the export of a stored answer, or of the one that the question has now."""
        from advisor import api

        question, row = self.question, self.row
        record = None if self.answer is None else _stored(self.answer, row)
        predictor = predictor_of(question)
        if record is not None:
            job, recording = _job_of_stored(question, record, predictor)
        else:
            recording = api.recording_of(question.job)
            job = api.job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)

        def exported(answer: Any) -> export.Exported:
            return export.export_to(
                answer, self.to, rank=row, job=job, recording=recording, values=given,
                predictor=predictor, space=ask.layout_space(question.layout) or estimate.SPACE,
            )  # fmt: skip

        if record is not None:
            return exported(record)
        assert job is not None
        rank = partial(api.ranked, job, predictor=predictor, recording=recording)
        own = None if self.to is None else export.target_of(self.to).providers
        try:
            return exported(rank(question))
        except export.NotExportableError as refused:
            if row is not None or question.constraints.providers or own is None:
                raise
            wanted = replace(question.constraints, providers=tuple(sorted(own)))
            made = exported(rank(replace(question, constraints=wanted)))
            note = f"{refused}: this is the best row of its own clouds ({refused.hint})"
            return replace(made, notes=(note, *made.notes))


def _stored(path: Path, row: int | None) -> dict[str, Any]:
    """Return the answer in a file, once it has the row that is asked for."""
    hint = "write one: advisor recommend --json > answer.json"
    record = answer.object_in(path, "the answer", error=UsageError, hint=hint)
    export.read_pick(record, row)
    return record


def _job_of_stored(
    question: Question, record: dict[str, Any], predictor: estimate.Predictor
) -> tuple[jobs.Job | None, collectors.Recording | None]:
    """Return the job of a stored answer: what the flags name, else its run where that is here."""
    from advisor import api
    from advisor.collectors.errors import RecordingError

    spec = question.job
    if not (spec.names_a_job or spec.is_known_by_runs):
        spec = replace(spec, run=str(record.get("run", "")))
        try:
            recording = api.recording_of(spec)
        except RecordingError:
            return None, None
    else:
        recording = api.recording_of(spec)
    job = api.job_of(spec, question.setup, catalogue=lambda: predictor.catalogue)
    return job, recording


def _values(said: list[str]) -> dict[str, str]:
    found = {}
    for one in said:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"cannot read --set {one!r}", hint="write --set NAME=VALUE")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """Write what `advisor recommend` answers as one HTML page that loads nothing.

    The page holds the list, the recorded run and the advice, and can be sent to anybody. Exit
    code 3 means that nothing satisfies the constraints; the page then shows the nearest misses.
    """

    # fmt: off
    question: Question = asked(JOB, CONSTRAINTS, PRICES, CLUSTER, LAYOUT, SETUP)
    recorded: str | None = run_argument()
    out: str = option("File to write; `-` is standard output.",
        default="report.html", flags="--out -o", metavar="FILE")
    force: bool = option("Overwrite a file that is not an earlier report.", default=False)
    as_json: bool = option("Print what the page holds as JSON, and write no page.",
        default=False, flags="--json", panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        from advisor import api

        asked = with_run(self.question, self.recorded)
        target = Path(self.out)
        if self.out != _STDOUT and not self.as_json and not self.force:
            _check_overwrites(target)
        own: simulate.ClusterComparison | None = None

        def beside(job: jobs.Job, found: answer.Recommendation, known: estimate.Predictor) -> Any:
            nonlocal own
            own = simulate.comparison(asked, job, found, known)
            return None if own is None else own.to_record()["own_cluster"]

        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        with waiting(
            "pricing the job on every offer, and with each change", is_quiet=self.as_json
        ):
            data = api.report_data(asked, made=made, beside=beside)
        if self.as_json:
            print_json(data)
        else:
            _write(data, self.out, target)
        if not data["answer"]["picks"] and not (own is not None and own.meets_constraints):
            raise typer.Exit(3)


def _write(data: dict[str, object], out: str, target: Path) -> None:
    text = report.answer_page(data)
    if out == _STDOUT:
        typer.echo(text, nl=False)
        return
    atomic.write_text(target, text)
    typer.echo(f"wrote {target} ({len(text.encode()) / 1e6:.1f} MB)", err=True)


def _check_overwrites(target: Path) -> None:
    """Refuse to replace a file that is no report: it may be the user's own work."""
    mark = f'<meta name="generator" content="{report.GENERATOR}">'
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint=f"-o {target / 'report.html'}")
    if not target.is_file() or target.stat().st_size == 0:
        return
    with target.open("rb") as file:
        if mark.encode() not in file.read(4096):
            raise UsageError(
                f"{target} exists and is not an earlier report", hint="--force overwrites it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeUi:
    """Show the recommendation as a page in the browser, with controls for every constraint.

    The page is served on this machine's loopback address only, to whoever has the address that is
    printed; with --serve, to whoever the proxy in front of it lets through. Ctrl-C ends it.
    """

    # fmt: off
    question: Question = asked(JOB, CONSTRAINTS, PRICES, CLUSTER, LAYOUT, SETUP)
    recorded: str | None = run_argument()
    port: int = option("Port on 127.0.0.1; 0 takes a free one.",
        default=0, min=0, max=65535, show_default=True)
    is_opened: bool = option("Open the page in a browser.", default=True, flags="--open/--no-open")
    is_served: bool = option("Serve a team behind its own proxy, which signs people in: no token, "
        "questions as addresses, answers as JSON, several at once.",
        default=False, flags="--serve")
    url: str | None = option("With --serve: the address that the proxy gives the server, as "
        "https://advisor.example.org.", metavar="URL")
    workers: int | None = option("With --serve: processes that answer questions (default: one a "
        "core).", min=1, max=256)
    # fmt: on

    def __call__(self) -> None:
        asked = with_run(self.question, self.recorded)
        if not self.is_served and (self.url is not None or self.workers is not None):
            name = "--workers" if self.url is None else "--url"
            raise UsageError(f"{name} goes with --serve", hint="add --serve, or leave it out")
        if self.is_served and asked.cluster.trace is not None:
            raise UsageError(
                "--cluster-trace does not apply to --serve", hint="ask `advisor recommend` with it"
            )
        keys = ui.Keys.shared(self.url or "") if self.is_served else ui.Keys()
        processes = (self.workers or os.cpu_count() or 1) if self.is_served else 0
        with ui.ended_by_signals(), ui.listening_socket(self.port) as listener:
            with waiting("reading the job and the catalogue"):
                server = ui.Server(
                    asked, listener, beside=None if self.is_served else simulate.comparison,
                    keys=keys, processes=processes,
                )  # fmt: skip
            typer.echo(server.address)
            server.run(is_opened=self.is_opened and not self.is_served)
