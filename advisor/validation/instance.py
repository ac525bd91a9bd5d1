"""Protocol ``instance``: a network described and run once on a T4, on a GPU never seen (PROFET).

The job is what a user has who described a model and noted one run of it (``--cnn``, ``--runs``):
the product answers for the V100 and the K80, each left out with its chip of everything that is
fitted, with no sustained rate of it known. PROFET's other networks cannot be described.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.jobs.actuals import Actual
from advisor.jobs.described import described_job
from advisor.lab.data import PROFET
from advisor.machines.fleet import lone_fleet
from advisor.planners.core.nouns import Device
from advisor.planners.step.device_rates import unmeasured
from advisor.predict import Predictor
from advisor.train.described_columns import chip_of, columns
from advisor.train.described_images import profet_rows
from advisor.train.described_rows import read_steps
from advisor.train.efficiencies import StepModel
from advisor.train.measured_step import MeasuredStep
from advisor.validation.described import asking_with
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, compare, score

Array = np.ndarray
ANCHOR: Final = "T4"
SEEN: Final = (
    "the equation, its priors and the shapes of the process: chosen with these rows in sight",
)


def run(data: Path) -> Validation:
    """Ask the product for every described network under ``data`` with its run on the T4.

    Raises
    ------
    ModelError
        If the table cannot be read, or no network was run on a T4 and on another GPU.
    """
    steps = list(profet_rows(data, is_whole=True))
    anchors = {_job(s): s for s in steps if s.device.name == ANCHOR}
    scored = [s for s in steps if s.device.name != ANCHOR and _job(s) in anchors]
    if not scored:
        raise ModelError(
            f"no network of {PROFET.title} was run on a {ANCHOR} and on another GPU",
            hint="name the measurements with --data",
        )
    known = [anchors[_job(s)] for s in scored]
    with_run, log_sd, without_run = _answers(data, scored, known)
    measured = np.array([s.seconds for s in scored])
    device = np.array([s.device.name for s in scored])
    half = np.exp(REACH_90 * log_sd)

    def scores(mask: Array) -> Scores:
        return score(
            with_run[mask],
            measured[mask],
            low=(with_run / half)[mask],
            high=(with_run * half)[mask],
        )

    simple, beside = compare(_rules(scored, known) | {"no run": without_run}, with_run, measured)
    return Validation(
        protocol="instance",
        description="step of a described network, known one run on a T4, on a GPU left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=scores(np.ones(len(scored), bool)),
        groups=[
            Group(group=str(name), scores=scores(device == name)) for name in np.unique(device)
        ],
        baselines=simple,
        beside=beside,
        notes=(
            "ResNets and VGGs on images of 128 pixels and more: PROFET's others are not described",
            "'no run': the product's answer without the run on the T4",
        ),
    )


def _job(step: MeasuredStep) -> tuple[str, int, float]:
    """Return what tells a network, its images and its batch."""
    return step.model, step.work.micro_batch, sum(o.flop for o in step.operators)


def _answers(
    data: Path, scored: Sequence[MeasuredStep], known: Sequence[MeasuredStep]
) -> tuple[Array, Array, Array]:
    """Return seconds with the run, their deviation of logarithms, and seconds without it."""
    steps = read_steps(data)
    rows = columns(steps)
    model = StepModel(rows)
    start = model.fit(np.ones(rows.log_s.size, bool)).parameters
    found = np.full((3, len(scored)), np.nan)
    for name in {s.device.name for s in scored}:
        out = rows.chip == chip_of(name)
        asking = asking_with(model.fit(~out, start), {}, steps, rows, ~out)
        for i, step in enumerate(scored):
            if step.device.name == name:
                found[:2, i] = _ask(asking, step, known[i])
                found[2, i] = _ask(asking, step, None)[0]
    return found[0], found[1], found[2]


def _ask(asking: Predictor, step: MeasuredStep, run: MeasuredStep | None) -> tuple[float, float]:
    job = described_job(step.work, name=step.model)
    if run is not None:
        noted = Actual(run=step.model, provider="", instance_type=run.device.name, count=1,
                       step_s=run.seconds)  # fmt: skip
        job = replace(job, actuals=(noted,))
    row = asking.catalogue.accelerators.get(step.device.name)
    columns = asking.step_columns(
        job, np.array([0]), np.array([1]), fleet=lone_fleet(unmeasured(step.device), 1, row)
    )
    return float(columns.step_s[0]), float(columns.log_sd[0])


def _rules(scored: Sequence[MeasuredStep], known: Sequence[MeasuredStep]) -> dict[str, Array]:
    """Return the run times ratios of datasheets: seconds."""

    def scaled(rate: str) -> Array:
        def of(device: Device) -> float:
            return float(getattr(device, rate) or 1.0)

        return np.array(
            [k.seconds * of(k.device) / of(s.device) for s, k in zip(scored, known, strict=True)]
        )

    return {
        "anchor x ratio of peak FLOP/s": scaled("fp32_flop_per_s"),
        "anchor x ratio of bandwidth": scaled("memory_bytes_per_s"),
    }
