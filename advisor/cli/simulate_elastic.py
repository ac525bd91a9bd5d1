"""``advisor simulate elastic``: plan workers that join and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.plot_option import Plot
from advisor.cli.quantity_types import COUNT, SECONDS, SHARE, USD, quantity
from advisor.cli.simulate_options import HOUR_S, AsJson, Deadline, show
from advisor.cli.waiting import waiting
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.simulation.elastic import JobFigures


def command(
    run: Annotated[
        str | None,
        typer.Option(
            help="Recorded run whose length, batch and steps are taken: its name, part of it, its "
            "folder, or `latest`. Goes with --on.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="Machine type of a worker, with --run: g5.xlarge or aws:g5.xlarge.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        float | None,
        quantity(COUNT, "--samples", help="Samples each phase needs at a very small batch size."),
    ] = None,
    phases: Annotated[
        int | None,
        typer.Option(
            min=1, help="Phases of the training run, such as epochs.", show_default=False
        ),
    ] = None,
    batch: Annotated[
        float | None, typer.Option(help="Global batch size of the job.", show_default=False)
    ] = None,
    sample_time: Annotated[
        float | None,
        quantity(SECONDS, "--sample-time", help="Time of one sample on one worker, e.g. 4ms."),
    ] = None,
    price: Annotated[
        float | None, quantity(USD, "--price", help="Price of one worker, in USD per hour.")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Gradient noise scale in samples, of the FIRST:LAST phase (default: that of the "
            "recorded gradients, if known).",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[str, typer.Option(help="Other batch sizes to try, comma-separated.")] = "",
    workers: Annotated[
        str, typer.Option(help="Worker counts to choose from, comma-separated.")
    ] = "1,2,4,8,16",
    step_time: Annotated[
        float,
        quantity(
            SECONDS,
            "--step-time",
            default="0s",
            help="Part of a step that does not depend on the batch.",
        ),
    ] = 0.0,
    sync_time: Annotated[
        float,
        quantity(
            SECONDS,
            "--sync-time",
            default="0s",
            help="Exposed communication time for each doubling of the workers.",
        ),
    ] = 0.0,
    spread: Annotated[
        float | None,
        quantity(
            SHARE,
            "--spread",
            help="Standard deviation of the workers' compute time as a share of its mean: each "
            "step waits for the slowest (default: that of the recorded ranks, otherwise of the "
            "fitted clusters).",
        ),
    ] = None,
    resize: Annotated[
        float,
        quantity(
            SECONDS,
            "--resize",
            default="60s",
            help="How long training stands still when the number of workers changes.",
        ),
    ] = 60.0,
    quantum: Annotated[
        float,
        quantity(
            SECONDS,
            "--quantum",
            default="1s",
            help="Billing granularity; charges round up to a multiple of this.",
        ),
    ] = 1.0,
    startup: Annotated[
        float,
        quantity(
            SECONDS,
            "--startup",
            default="0s",
            help="Time that is billed before a worker computes.",
        ),
    ] = 0.0,
    deadline: Deadline = None,
    budget: Annotated[
        float | None, quantity(USD, "--budget", help="Maximum to spend, in USD.")
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Plan when workers join and leave; compare with a fixed number.

    With --run and --on the job's figures are the recording's, on these machines; what is given
    besides stands in their place.
    """
    from advisor.simulation import elastic as simulation

    counts = [int(count) for count in _numbers("--workers", workers)]
    by_hand = {
        "--samples": samples, "--phases": phases, "--batch": batch, "--sample-time": sample_time,
        "--price": price,
    }  # fmt: skip
    known = None if run is None else _figures(run, on, counts)
    if known is None:
        missing = [flag for flag, value in by_hand.items() if value is None]
        if missing or on is not None:
            what = "--on needs a run" if not missing else f"not given: {', '.join(missing)}"
            raise UsageError(what, hint="take them from a recording: --run latest --on g5.xlarge")
    question = simulation.question_of(
        samples=samples,
        phases=int(_first(phases, None if known is None else known.phases)),
        noise=_noise(noise),
        batch=_first(batch, None if known is None else known.batch),
        batches=_numbers("--batches", batches),
        workers=counts,
        step_s=step_time,
        sample_s=sample_time,
        sync_per_doubling_s=sync_time,
        price_usd_per_h=_first(price, None if known is None else known.price_usd_per_h),
        quantum_s=quantum,
        startup_s=known.startup_s if known is not None and not startup else startup,
        resize_s=resize,
        deadline_s=None if deadline is None else deadline * HOUR_S,
        budget_usd=budget,
        spread_fraction=spread,
        known=known,
    )
    with waiting("planning", is_quiet=as_json):
        answer = simulation.elastic_answer(question)
    show(answer.to_record(), answer.charts, plot, as_json, "elastic")


def _figures(run: str, on: str | None, workers: list[int]) -> JobFigures:
    """Return what the recording and the one estimate say of the job on these machines."""
    from advisor.cli.waiting import waiting
    from advisor.jobs.loading import load_job
    from advisor.predict import Predictor
    from advisor.simulation.elastic import figures_of

    if on is None:
        raise UsageError("--run needs machines", hint="name a worker's type: --on g5.xlarge")
    with waiting("estimating the job on each number of workers"):
        job = load_job(None if run == "latest" else run)
        return figures_of(Predictor(), job, on, workers)


def _first(given: float | None, known: float | None) -> float:
    value = known if given is None else given
    assert value is not None  # checked: all are given, or the run is
    return float(value)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(
            f"{option}: cannot read {text!r} as a list of numbers", hint="write e.g. 1,2,4"
        ) from None


def _noise(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    values = _numbers("--noise", text.replace(":", ","))
    if len(values) not in (1, 2) or min(values) <= 0:
        raise UsageError(
            f"--noise: cannot read {text!r} as a noise scale", hint="write e.g. 500:20000"
        )
    return values[0], values[-1]
