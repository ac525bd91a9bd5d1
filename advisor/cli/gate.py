"""``advisor gate``: whether a submission keeps a job's limits, by exit code."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.asking import CONSTRAINTS, JOB, LAYOUT, SETUP, asks
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.question import Question

if TYPE_CHECKING:
    from advisor.catalogue import Catalogue
    from advisor.gate.records import GateVerdict, Submission

settings: Final[dict[str, Any]] = {
    "context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": False}
}
# What a question has for choosing among rows: a gate names its machines.
_NOT_ASKED: Final = ("spot", "mixed", "gain", "top", "probes", "here_price", "checkpoints")
_LIMITS: Final = tuple(name for name in CONSTRAINTS if name not in _NOT_ASKED)
_LARGEST: Final = 4_000_000


@asks(
    JOB, _LIMITS, ("completion", "cluster_price", "catalogue", "overrides"), LAYOUT, SETUP
)  # fmt: skip
def command(
    question: Question,
    sbatch_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SBATCH-ARGS]...",
            help="With --sbatch: the arguments of sbatch.",
            show_default=False,
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
    """Judge machines before they are submitted: whether they hold the job and keep its limits.

    Exit code 0 means that the submission passes, 3 that it is refused; what would do is shown.
    A SkyPilot task says which job it is in its envs (ADVISOR_RUN: NAME), a batch script in a line
    `#ADVISOR run=NAME`.
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
            from advisor.gate.skypilot_tasks import read_task

            return read_task(_text(skypilot), catalogue)
        return _slurm(question, sbatch_arguments or [], slurm_options, partitions)

    from advisor.gate.answer import judge_submission

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
        from advisor.report.gate import text

        typer.echo(text(record))
    if not found.passes:
        raise typer.Exit(3)


def _machines(question: Question, on: str, count: int) -> GateVerdict:
    """Judge named machines; what keeps them from being judged is an error."""
    from advisor.gate.answer import judge
    from advisor.gate.records import AskedMachines, Submission

    provider, _, name = on.rpartition(":")
    asked = AskedMachines(
        instance_type=name, count=count, provider=provider or None,
        completion=question.completion or "on-demand",
    )  # fmt: skip
    return judge(lambda _: Submission(asked=(asked,)), question)


def _slurm(
    question: Question, arguments: list[str], options: str | None, partitions: list[str]
) -> Submission:
    from advisor.gate.sbatch import parse_partitions, read_command, read_submission

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
