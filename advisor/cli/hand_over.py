"""``advisor gate``: whether a submission keeps a job's limits, by exit code."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.ask import Question
from advisor.cli.options import (
    CLUSTER,
    CONSTRAINTS,
    JOB,
    LAYOUT,
    SETUP,
    Recorded,
    asks,
    waiting,
    with_run,
)
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.answer import Recommendation
    from advisor.catalogue import Catalogue
    from advisor.collectors.format import Recording
    from advisor.estimate import Predictor
    from advisor.export import Exported
    from advisor.gate import GateVerdict, Submission
    from advisor.jobs import Job
    from advisor.simulate import ClusterComparison


gate_settings: Final[dict[str, Any]] = {
    "context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": False}
}
# What a question has for choosing among rows: a gate names its machines.
_NOT_ASKED: Final = ("spot", "mixed", "gain", "top", "probes", "here_price", "checkpoints")
_LIMITS: Final = tuple(name for name in CONSTRAINTS if name not in _NOT_ASKED)
_LARGEST: Final = 4_000_000


@asks(
    JOB, _LIMITS, ("completion", "cluster_price", "catalogue", "overrides"), LAYOUT, SETUP
)  # fmt: skip
def gate(
    question: Question,
    sbatch_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SBATCH-ARGS...]", help="With --sbatch: the arguments of sbatch."
        ),
    ] = None,
    *,
    on: Annotated[
        str | None, typer.Option("--on", help="Machine type to judge: g5.xlarge or aws:g5.xlarge.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of machines, with --on.")] = 1,
    skypilot: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="SkyPilot task to judge; - reads standard input."),
    ] = None,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="Judge what sbatch would submit with SBATCH-ARGS.")
    ] = False,
    slurm_options: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON of sbatch's options to judge, from Slurm's cli_filter; - reads standard "
            "input.",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MACHINE",
            help="What a machine of a Slurm partition is: gpu=8xA100-80GB:nvlink@200Gbps, or "
            "cloud=p4d.24xlarge; may be repeated, the first is the default partition.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse a SkyPilot or Slurm submission that cannot be judged."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Judge a submission: whether the job fits its machines and keeps its limits.

    Exit code 0 means that the submission passes. Exit code 3 means that it is refused, and shows
    what would pass. A SkyPilot task names its job in its envs (ADVISOR_RUN: NAME), a batch script
    in a line `#ADVISOR run=NAME`.
    """
    wanted = [on is not None, skypilot is not None, sbatch, slurm_options is not None]
    if sum(wanted) != 1:
        raise UsageError(
            "name one thing to judge: --on, --skypilot, --sbatch or --slurm-options",
            hint="--on aws:p4d.24xlarge --count 2, or --sbatch -- train.sbatch",
        )
    if sbatch_arguments and not sbatch:
        raise UsageError(
            f"arguments that only --sbatch takes: {sbatch_arguments[0]}", hint="leave them out"
        )
    partitions = partition or []

    def read(catalogue: Catalogue) -> Submission:
        if skypilot is not None:
            from advisor.gate import read_task

            return read_task(_text(skypilot), catalogue)
        return _slurm(question, sbatch_arguments or [], slurm_options, partitions)

    from advisor.gate import judge_submission

    with waiting("judging the submission", is_quiet=as_json):
        found = (
            _machines(question, on, count)
            if on is not None
            else judge_submission(read, question, is_strict=strict)
        )
    record = found.to_record()
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        from advisor.words import text

        typer.echo(text(record))
    if not found.passes:
        raise typer.Exit(3)


def _machines(question: Question, on: str, count: int) -> GateVerdict:
    """Judge named machines; what keeps them from being judged is an error."""
    from advisor.gate import AskedMachines, Submission, judge

    provider, _, name = on.rpartition(":")
    asked = AskedMachines(
        instance_type=name, count=count, provider=provider or None,
        completion=question.completion or "on-demand",
    )  # fmt: skip
    return judge(lambda _: Submission(asked=(asked,)), question)


def _slurm(
    question: Question, arguments: list[str], options: str | None, partitions: list[str]
) -> Submission:
    from advisor.gate import parse_partitions, read_command, read_submission

    known = parse_partitions(partitions)
    folder = Path.cwd()
    if options is None:
        given = read_command(arguments, os.environ, folder)
    else:
        given = _json(_text(options))
    return read_submission(
        given, os.environ, known, folder=folder,
        price_usd_per_device_h=question.cluster.price_usd_per_device_h,
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


# ``advisor export``: a recommendation as a file that another tool runs.


_STDOUT: Final = "-"  # in place of a file to write


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), LAYOUT, SETUP)
def export(
    question: Question,
    *,
    row: Annotated[
        int | None,
        typer.Argument(metavar="N", help="Row (default: the best value)."),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="Tool to write for: skypilot, dstack, kubernetes, kubeflow, sagemaker, vertex, "
            "azureml, slurm, torchrun, accelerate, deepspeed or megatron.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="PATH",
                     help="File or FOLDER/ to write (default, and for -: print the file)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that are no earlier export.")
    ] = False,
    answer: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE",
                     help="Answer of `recommend --json` to take the row from, instead of asking."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE",
                     help="A value that only you know, such as image=...; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:  # fmt: skip
    """Write row N of the recommendation as a file that a tool runs.

    Exit code 3 means that nothing satisfies the constraints, or no framework runs the layout.
    """
    from advisor.export import target_of, write

    output = None if output == _STDOUT else output
    target = target_of(to)
    given = _values(values or [])
    target.filled(given)  # a wrong name is said before anything is ranked
    with waiting("pricing the job on every offer", is_quiet=as_json):
        made = _exported(question, to, row, answer, given)
    if as_json:
        typer.echo(json.dumps(made.to_record(), indent=2))
    elif output is None:
        typer.echo(next(iter(made.files.values())), nl=False)
    if output is not None:
        is_folder = output.endswith(os.sep)
        paths = write(made, Path(output), is_folder=is_folder, force=force)
        for path in paths.values():
            typer.echo(f"wrote {path}", err=True)
        made = made.placed(paths)
    if not as_json:
        for note in made.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"run: {made.run}", err=True)


def _exported(
    question: Question, to: str, row: int | None, answer: Path | None, given: dict[str, str]
) -> Exported:
    """Return the export of a stored answer, or of the one that the question has now."""
    from advisor import api
    from advisor.ask import layout_space
    from advisor.catalogue import Catalogue
    from advisor.estimate import SPACE, Predictor
    from advisor.export import NotExportableError, export_to, target_of

    record = None if answer is None else _stored(answer, row)
    predictor = Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))
    space = layout_space(question.layout) or SPACE
    if record is not None:
        job, recording = _job_of_stored(question, record, predictor)
        return export_to(
            record, to, rank=row, job=job, recording=recording, values=given,
            predictor=predictor, space=space,
        )  # fmt: skip
    recording = api.recording_of(question.job)
    job = api.job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)

    def exported(asked: Question) -> Exported:
        ranked = api.ranked(job, asked, predictor=predictor, recording=recording)
        return export_to(
            ranked, to, rank=row, job=job, recording=recording, values=given,
            predictor=predictor, space=space,
        )  # fmt: skip

    own = target_of(to).providers
    try:
        return exported(question)
    except NotExportableError as refused:
        if row is not None or question.constraints.providers or own is None:
            raise
        wanted = replace(question.constraints, providers=tuple(sorted(own)))
        made = exported(replace(question, constraints=wanted))
        note = f"{refused}: this is the best row of its own clouds ({refused.hint})"
        return replace(made, notes=(note, *made.notes))


def _stored(path: Path, row: int | None) -> dict[str, Any]:
    """Return the answer in a file, once it has the row that is asked for."""
    from advisor.collectors.bounded import read_json
    from advisor.export import read_pick

    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the answer {path}: {error}",
            hint="write one: advisor recommend --json > answer.json",
        ) from error
    if not isinstance(record, dict):
        raise UsageError(f"{path} holds no answer", hint="advisor recommend --json > answer.json")
    read_pick(record, row)
    return record


def _job_of_stored(
    question: Question, record: dict[str, Any], predictor: Predictor
) -> tuple[Job | None, Recording | None]:
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


# ``advisor report``: the answer, the run and the advice as one interactive HTML page.


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), CLUSTER, LAYOUT, SETUP)
def report(
    question: Question,
    recorded: Recorded = None,
    *,
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FILE", help="File to write; `-` is standard output."),
    ] = "report.html",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not an earlier report.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the page holds as JSON, and write no page.")
    ] = False,
) -> None:
    """Write what `advisor recommend` answers as one HTML page that loads nothing.

    The page holds the list, the recorded run and the advice, and can be sent to anybody. Exit
    code 3 means that nothing satisfies the constraints; the page then shows the nearest misses.
    """
    from advisor import api
    from advisor.cli import simulate

    asked = with_run(question, recorded)
    target = Path(out)
    if out != _STDOUT and not as_json and not force:
        _check_overwrites(target)
    own: ClusterComparison | None = None

    def beside(job: Job, answer: Recommendation, predictor: Predictor) -> Any:
        nonlocal own
        own = simulate.comparison(asked, job, answer, predictor)
        return None if own is None else own.to_record()["own_cluster"]

    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with waiting("pricing the job on every offer, and with each change", is_quiet=as_json):
        data = api.report_data(asked, made=made, beside=beside)
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        _write(data, out, target)
    if not data["answer"]["picks"] and not (own is not None and own.meets_constraints):
        raise typer.Exit(3)


def _write(data: dict[str, object], out: str, target: Path) -> None:
    from advisor.collectors import atomic
    from advisor.report import answer_page

    text = answer_page(data)
    if out == _STDOUT:
        typer.echo(text, nl=False)
        return
    atomic.write_text(target, text)
    typer.echo(f"wrote {target} ({len(text.encode()) / 1e6:.1f} MB)", err=True)


def _check_overwrites(target: Path) -> None:
    """Refuse to replace a file that is no report: it may be the user's own work."""
    from advisor.report import GENERATOR

    mark = f'<meta name="generator" content="{GENERATOR}">'
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint=f"-o {target / 'report.html'}")
    if not target.is_file() or target.stat().st_size == 0:
        return
    with target.open("rb") as file:
        if mark.encode() not in file.read(4096):
            raise UsageError(
                f"{target} exists and is not an earlier report", hint="--force overwrites it"
            )


# ``advisor ui``: the recommendation in the browser, with controls for the question.


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), CLUSTER, LAYOUT, SETUP)
def ui(
    question: Question,
    recorded: Recorded = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.", show_default=True
        ),
    ] = 0,
    is_opened: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    is_served: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Serve a team behind its own proxy, which signs people in: no token, questions "
            "as addresses, answers as JSON, several at once.",
        ),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --serve: the address that the proxy gives the server, as "
            "https://advisor.example.org.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="With --serve: processes that answer questions (default: one a core).",
        ),
    ] = None,
) -> None:
    """Show the recommendation as a page in the browser, with controls for every constraint.

    The page is served on this machine's loopback address only, to whoever has the address that is
    printed; with --serve, to whoever the proxy in front of it lets through. Ctrl-C ends it.
    """
    from advisor.cli import simulate
    from advisor.ui import Keys, Server, ended_by_signals, listening_socket

    asked = with_run(question, recorded)
    if not is_served and (url is not None or workers is not None):
        name = "--workers" if url is None else "--url"
        raise UsageError(f"{name} goes with --serve", hint="add --serve, or leave it out")
    if is_served and asked.cluster.trace is not None:
        raise UsageError(
            "--cluster-trace does not apply to --serve", hint="ask `advisor recommend` with it"
        )
    keys = Keys.shared(url or "") if is_served else Keys()
    processes = (workers or os.cpu_count() or 1) if is_served else 0
    with ended_by_signals(), listening_socket(port) as listener:
        with waiting("reading the job and the catalogue"):
            server = Server(
                asked, listener, beside=None if is_served else simulate.comparison, keys=keys,
                processes=processes,
            )  # fmt: skip
        typer.echo(server.address)
        server.run(is_opened=is_opened and not is_served)
