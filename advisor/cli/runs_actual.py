"""``advisor runs actual``: say what a real run took, so that later estimates are narrower."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from advisor.cli.asking import LAYOUT, SETUP, asks
from advisor.cli.quantity_types import HOURS, SECONDS_WITH_UNIT, USD, quantity
from advisor.cli.runs_compare import warn_of_drift
from advisor.errors import UsageError
from advisor.question import Question

if TYPE_CHECKING:
    from advisor.train.drift import Comparison
    from advisor.train.step_feedback import StepComparison


# What says which transformer ran, in which layout and with which software, and on what.
_TRANSFORMER: Final = ("model", "layers", "hidden", "heads", "kv_heads", "ffn", "gated",
                       "vocabulary", "experts", "experts_per_token", "sequence", "batch",
                       "precision")  # fmt: skip
_NO_STEP: Final = UsageError("the step time is missing", hint="give --step-time 5.2s")
_LAYOUT: Final = tuple(n for n in LAYOUT if n not in ("swap", "average_every"))


@asks(_TRANSFORMER, ("cluster",), _LAYOUT, SETUP)
def command(
    question: Question,
    *,
    run: Annotated[
        str | None,
        typer.Argument(
            help="The recorded run of the same job: its name, part of it, or its folder; none "
            "with --model, or --layers."
        ),
    ] = None,
    instance_type: Annotated[
        str | None,
        typer.Argument(
            help="Instance type it ran on, e.g. g5.xlarge (default: found from time and cost)."
        ),
    ] = None,
    time: Annotated[
        float | None,
        quantity(HOURS, "--time", help="What the whole job took: 3h12m, 45m or 2d."),
    ] = None,
    cost: Annotated[
        float | None, quantity(USD, "--cost", help="What was billed for it, in USD.")
    ] = None,
    step_time: Annotated[
        float | None,
        quantity(
            SECONDS_WITH_UNIT,
            "--step-time",
            help="Mean time of an optimizer step, in place of --time: 310ms.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Machines that it ran on.")] = 1,
    provider: Annotated[
        str | None, typer.Option(help="Provider, where two of them use the same name.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Record what a real run took; later estimates learn from it.

    A transformer that was never profiled is named by --model (or --layers, --hidden, --heads),
    what it ran on by --cluster, its layout by --tp, --pp, ...; its steps calibrate `plan` and
    `recommend` for every transformer. With a recorded RUN, --cluster and --batch, three runs on
    several numbers of machines show how the job scales there.
    """
    found: Comparison | StepComparison
    if run is None:
        found = _layout_run(question, step_time)
    elif question.cluster.machines is not None:
        found = _cluster_run(run, question, step_time)
    else:
        _refuse_described(question)
        from advisor.train.feedback import note_run

        found = note_run(
            run,
            instance_type,
            count=count,
            provider=provider,
            time_h=time,
            step_s=step_time,
            cost_usd=cost,
        )
    from advisor.train.step_feedback import StepComparison

    if as_json:
        typer.echo(json.dumps(found.to_record(), indent=2))
    else:
        typer.echo(_layout_text(found) if isinstance(found, StepComparison) else _text(found))
    warn_of_drift()


def _refuse_described(question: Question) -> None:
    if question.job.is_described:
        raise UsageError(
            "a recorded run cannot be combined with a described model",
            hint="name one of them: RUN, or --model",
        )


def _cluster_run(run: str, question: Question, step_s: float | None) -> StepComparison:
    from advisor.train.step_feedback import note_cluster_run

    _refuse_described(question)
    if step_s is None:
        raise _NO_STEP
    machines = str(question.cluster.machines)
    return note_cluster_run(run, machines, step_s=step_s, batch=question.job.batch)


def _layout_run(question: Question, step_s: float | None) -> StepComparison:
    from advisor import api
    from advisor.question.layout import layout_space
    from advisor.train.step_feedback import note_layout_run
    from advisor.ways.case import SPACE

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
    return note_layout_run(
        api.job_of(question.job, question.setup),
        question.cluster.machines,
        step_s=step_s,
        space=layout_space(question.layout, SPACE),
    )


def _layout_text(found: StepComparison) -> str:
    from advisor.quantities import digits

    known, layout, error = found.predicted_s, found.layout, found.error_fraction
    runs = "this run" if found.known == 1 else f"{found.known} such runs"
    return "\n".join(
        [
            f"{found.name} on {found.machines}: dp {layout.dp} x tp {layout.tp} x pp {layout.pp} "
            f"x cp {layout.cp}, micro-batch {layout.micro_batch}, recompute {layout.recompute}",
            f"step   predicted {digits(known.value)} s ({digits(known.low)}-{digits(known.high)}"
            f"), took {digits(found.step_s)} s: {abs(error):.0%} "
            f"{'over' if error > 0 else 'under'}, "
            f"{'inside' if found.is_inside else 'outside'} the interval",
            f"noted: the next estimates start from {runs}",
        ]
    )


def _text(found: Comparison) -> str:
    from advisor.quantities import (
        digits,
        hours_interval,
        hours_text,
        usd_interval,
        usd_text,
    )

    time, time_range = hours_interval(found.predicted_h)
    actual, error = found.actual, found.error_fraction
    lines = [
        f"{actual.count} x {actual.instance_type} ({actual.provider})",
        f"time   predicted {time} ({time_range}), took {hours_text(found.time_h)}: "
        f"{abs(error):.0%} {'over' if error > 0 else 'under'}, "
        f"{'inside' if found.is_inside else 'outside'} the interval",
    ]
    if actual.cost_usd is not None and found.predicted_usd is not None:
        cost, cost_range = usd_interval(found.predicted_usd)
        off = found.predicted_usd.value / actual.cost_usd - 1.0
        lines.append(
            f"cost   predicted {cost} ({cost_range}), billed {usd_text(actual.cost_usd)}: "
            f"{abs(off):.0%} {'over' if off > 0 else 'under'}"
        )
    lines.append(
        f"noted: a step takes {digits(1000 * actual.step_s)} ms there; the next estimates of this "
        "job start from it, and `advisor train` learns from it"
    )
    return "\n".join(lines)
