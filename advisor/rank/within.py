"""What machines that are given train in a given time: the inverse question of ``plan``.

The best way of training is that of ``plan``; the steps are those after which its time of the whole
job is the time that was asked for (``estimate.steps_within``). Without a job the question is asked
of models of several sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from advisor.answer import SCHEMA_VERSION, Answer, Estimate, Named, Recorded
from advisor.ask import JobSpec, SetupRequest
from advisor.errors import UsageError
from advisor.estimate import GivenMachines, job_of
from advisor.jobs import Job
from advisor.planners.core import PlanningError
from advisor.rank.given import PlanQuestion, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A dense decoder-only transformer as it was published."""

    name: str
    layers: int
    hidden: int
    heads: int
    batch: int  # samples of ``_SEQUENCE`` tokens in a step


_SEQUENCE: Final = 2048
# Table 1 of Zhang et al. 2022 (arXiv 2205.01068), the OPT models: 0.5, 1, 2 and 4 million (2^20)
# tokens a step; the dimensions also stand in facebookresearch/metaseq,
# metaseq/launcher/opt_job_constants.py (read 2026-11-25).
SIZES: Final = (
    ModelSize(name="125M", layers=12, hidden=768, heads=12, batch=256),
    ModelSize(name="350M", layers=24, hidden=1024, heads=16, batch=256),
    ModelSize(name="1.3B", layers=24, hidden=2048, heads=32, batch=512),
    ModelSize(name="2.7B", layers=32, hidden=2560, heads=32, batch=512),
    ModelSize(name="6.7B", layers=32, hidden=4096, heads=32, batch=1024),
    ModelSize(name="13B", layers=40, hidden=5120, heads=40, batch=2048),
    ModelSize(name="30B", layers=48, hidden=7168, heads=56, batch=2048),
    ModelSize(name="66B", layers=64, hidden=9216, heads=72, batch=1024),
    ModelSize(name="175B", layers=96, hidden=12288, heads=96, batch=1024),
)
SIZES_SOURCE: Final = "sizes and batches: the OPT models, Zhang et al. 2022, table 1"
# Hoffmann et al. 2022 (arXiv 2203.15556): 1.4 T tokens for 70 B parameters, and parameters and
# tokens grow alike.
OPTIMAL_TOKENS_PER_PARAMETER: Final = 20.0
OPTIMUM_SOURCE: Final = "20 tokens per parameter: Hoffmann et al. 2022 (arXiv 2203.15556)"


def job_of_size(
    size: ModelSize, spec: JobSpec, setup: SetupRequest | None, *, devices: int
) -> Job:
    """Return the job of one size, its batch rounded to a multiple of the devices.

    ``spec``: of which precision, batch and what surrounds the job are kept.
    """
    batch = spec.batch or max(round(size.batch / devices), 1) * devices
    described = replace(
        spec, layers=size.layers, hidden=size.hidden, heads=size.heads, sequence=_SEQUENCE,
        batch=batch,
    )  # fmt: skip
    return replace(job_of(described, setup), name=size.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained(Recorded):
    """What one job gets done in the time, in the best way of training it there."""

    name: str
    parameters: int
    trainable_parameters: int
    # steps, samples, tokens, epochs: finished in the time; tokens are None of what has none,
    # epochs where the size of the data is not known
    steps: Estimate
    samples: Estimate
    tokens: Estimate | None
    epochs: Estimate | None
    tokens_per_parameter: float | None
    plan: Answer  # the way that it is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Within(Recorded):
    """What machines train in a time."""

    schema_version: int = SCHEMA_VERSION
    within_h: float
    cluster: GivenMachines
    predictor: Named
    rows: tuple[Trained, ...]  # by size, the smallest first
    left_out: Mapping[str, str] = field(default_factory=dict)  # what does not fit, and why
    # the row whose tokens per parameter are nearest to the optimum; None of one job, and where
    # not all parameters are trained
    compute_optimal: str | None = None
    optimal_tokens_per_parameter: float = OPTIMAL_TOKENS_PER_PARAMETER
    sources: tuple[str, ...] = ()


def trained_within(question: PlanQuestion) -> Within:
    """Return how much of the job is done in ``question.within_h``.

    Raises PlanningError if nothing fits, or the machines are not ready by then.
    """
    return _answer(question, (trained(question),))


def sizes_within(
    question: PlanQuestion, spec: JobSpec, setup: SetupRequest | None = None
) -> Within:
    """Return the same of models of several sizes; the question's own job is not asked.

    Raises PlanningError if none of them fits.
    """
    rows: list[Trained] = []
    left_out: dict[str, str] = {}
    for size in SIZES:
        job = job_of_size(size, spec, setup, devices=sum(g.devices for g in question.cluster))
        try:
            rows.append(trained(replace(question, job=job)))
        except PlanningError as error:
            left_out[size.name] = str(error)
    if not rows:
        raise PlanningError(
            f"no model trains on these machines: {next(iter(left_out.values()))}",
            hint="add machines, or give them more time",
            exit_code=3,
        )
    found = _answer(question, tuple(rows))
    optimal = None
    if all(row.trainable_parameters == row.parameters for row in rows):
        optimal = min(rows, key=_distance).name
    sources = (SIZES_SOURCE, *(() if optimal is None else (OPTIMUM_SOURCE,)))
    return replace(found, left_out=left_out, compute_optimal=optimal, sources=sources)


def trained(question: PlanQuestion) -> Trained:
    """Return what the question's job gets done in the question's time."""
    if question.within_h is None:
        raise UsageError("no time is given", hint="say how long: --for 3d")
    best, job = plan(question).best, question.job
    steps = best.steps_within
    assert steps is not None
    assert job.work is not None
    if steps.value == 0:
        raise PlanningError(
            f"nothing is trained in {question.within_h:g} h: the machines are not ready by then",
            hint="give them more time",
            exit_code=3,
        )
    samples, shape = steps.scaled(job.global_batch), job.work.transformer
    tokens = None if shape is None else samples.scaled(shape.sequence)
    dataset = job.feed.dataset_samples
    return Trained(
        name=job.name, parameters=int(job.work.parameters),
        trainable_parameters=int(job.work.trainable_parameters), steps=steps, samples=samples,
        tokens=tokens, epochs=None if not dataset else samples.scaled(1.0 / dataset),
        tokens_per_parameter=None if tokens is None else tokens.value / job.work.parameters,
        plan=best,
    )  # fmt: skip


def _answer(question: PlanQuestion, rows: tuple[Trained, ...]) -> Within:
    assert question.within_h is not None
    return Within(
        within_h=question.within_h,
        cluster=GivenMachines.of(question.cluster),
        predictor=Named(name=question.predictor.name, version=question.predictor.version),
        rows=rows,
    )


def _distance(row: Trained) -> float:
    share = (row.tokens_per_parameter or math.inf) / OPTIMAL_TOKENS_PER_PARAMETER
    return abs(math.log(share))
