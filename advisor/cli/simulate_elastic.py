"""``advisor simulate elastic``: plan workers that join and leave."""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.cli.quantity_types import COUNT, SECONDS, USD, quantity
from advisor.cli.simulate_options import HOUR_S, AsJson, Deadline, Plot, show
from advisor.errors import UsageError


def command(
    samples: Annotated[
        float,
        quantity(COUNT, "--samples", help="Samples each phase needs at a very small batch size."),
    ],
    phases: Annotated[
        int, typer.Option(min=1, help="Phases of the training run, such as epochs.")
    ],
    batch: Annotated[float, typer.Option(help="Global batch size of the job.")],
    sample_time: Annotated[
        float,
        quantity(SECONDS, "--sample-time", help="Time of one sample on one worker, e.g. 4ms."),
    ],
    price: Annotated[
        float, quantity(USD, "--price", help="Price of one worker, in USD per hour.")
    ],
    noise: Annotated[
        str | None, typer.Option(help="Gradient noise scale in samples, of the FIRST:LAST phase.")
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
    """Plan when workers join and leave; compare with a fixed number."""
    from advisor.simulation import elastic as simulation

    question = simulation.question_of(
        samples=samples,
        phases=phases,
        noise=_noise(noise),
        batch=batch,
        batches=_numbers("--batches", batches),
        workers=[int(count) for count in _numbers("--workers", workers)],
        step_s=step_time,
        sample_s=sample_time,
        sync_per_doubling_s=sync_time,
        price_usd_per_h=price,
        quantum_s=quantum,
        startup_s=startup,
        resize_s=resize,
        deadline_s=None if deadline is None else deadline * HOUR_S,
        budget_usd=budget,
    )
    answer = simulation.elastic_answer(question)
    show("Elastic workers", answer.to_record(), answer.charts, plot, as_json, "elastic")


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
