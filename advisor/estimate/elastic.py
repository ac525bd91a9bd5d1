"""A job whose workers join and leave: its figures on machines of a type, by the one estimate.

``simulate elastic`` plans with them, and ``recommend`` where it says what a schedule would save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import UsageError
from advisor.estimate.case import SPACE, constants
from advisor.estimate.completion import on_demand
from advisor.estimate.knowledge.layout_model import trained_share
from advisor.estimate.launch.frameworks import commands
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import Job
from advisor.planners.core import GIB, HOUR_S, transformer_parameters
from advisor.planners.links import straggling
from advisor.planners.systems import NoiseScale, Phase, Schedule, WorkerScaling, language_noise

_POINTS: Final = 9  # of a training at which an assumed noise scale is told


def over_phases(points: Sequence[float], phases: int) -> list[float]:
    """Return what is known at some points of a training for each phase, geometrically between.

    >>> [round(one) for one in over_phases((100, 1000, 10000), 5)]
    [100, 316, 1000, 3162, 10000]
    """
    places = np.linspace(0.0, 1.0, len(points)) if len(points) > 1 else np.zeros(1)
    at = np.linspace(0.0, 1.0, phases)
    found: list[float] = np.exp(np.interp(at, places, np.log(np.asarray(points, float)))).tolist()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Figures of a job for a plan of elastic workers: as the one estimate says them."""

    samples: float  # of the whole job at its own batch [samples]
    phases: int  # epochs, where the dataset is known; one otherwise
    batch: float  # global batch [samples]
    scaling: WorkerScaling
    # price_usd_per_h, startup_s: of a worker. [USD/h], [s]
    price_usd_per_h: float
    startup_s: float
    source: str  # job and machine, in words
    # of the recorded gradients; None where a step had one gradient norm only
    noise: NoiseScale | None = None
    # where none was recorded, what is published of models like it, over the training [samples]
    assumed_noise: tuple[float, ...] = ()
    # vcpus, gib, accelerator: of that machine; the name is empty where it has none, or several
    vcpus: float = 0.0
    gib: float = 0.0
    accelerator: str = ""
    # machine, row: that machine, as ``provider:name`` and in the catalogue
    machine: str = ""
    row: int = -1


def figures_of(
    predictor: Predictor, job: Job, instance_type: str, workers: Sequence[int],
    batches: Sequence[float] = (),
) -> JobFigures:  # fmt: skip
    """Return a job's figures on one type of machines: a worker is a machine.

    The step on one worker at two batches gives what does not depend on the batch and what a
    sample takes; what more workers add beyond their share and the slowest one's is their exchange.
    Steps of its own batch and of ``batches`` are told one by one, as the estimate has them.

    Raises UsageError if the job has no steps, or the type cannot run it or is not sold on demand.
    """
    provider, _, name = instance_type.rpartition(":")
    row = predictor.catalogue.instance_type(name, provider=provider or None)
    offers, place = predictor.cheapest(row)
    counts = np.array(sorted(set(workers)))
    if job.work is None or place is None:
        what = "no training steps" if job.work is None else f"no on-demand price of {row.name}"
        raise UsageError(f"{job.name}: {what}", hint="give the figures by hand: --sample-time ...")

    def steps_s(asked: Job, on: NDArray[np.int64]) -> NDArray[np.float64]:
        columns = predictor.step_columns(asked, np.full(on.shape, row.index), on)
        return np.asarray(np.where(columns.status == 0, columns.step_s, np.nan))

    batch = float(job.global_batch)
    one_step = float(steps_s(job, np.ones(1, dtype=np.int64))[0])
    double = replace(job, global_batch=2 * job.global_batch, total_steps=job.total_steps / 2)
    two_step = float(steps_s(double, np.ones(1, dtype=np.int64))[0])
    if not (np.isfinite(one_step) and two_step > one_step):
        raise UsageError(
            f"{job.name} cannot be estimated on one {row.name} at twice its batch",
            hint="name another machine with --on, or give the figures by hand",
        )
    sample_s = (two_step - one_step) / batch
    alone_s = max(one_step - sample_s * batch, 0.0)
    sample_s = (one_step - alone_s) / batch
    columns = predictor.step_columns(job, np.full(counts.shape, row.index), counts)
    step_s = np.where(columns.status == 0, columns.step_s, np.nan)
    runs = np.isfinite(step_s)
    spread = constants().with_spread(job.spread).scaling
    computing_s = (alone_s + sample_s * batch / counts) * straggling(counts, spread)
    sync_s = np.maximum(step_s - computing_s, 0.0)
    told_s = {batch: tuple(step_s[runs].tolist())}
    for size in (one for one in batches if one >= 1 and one == round(one) and one != batch):
        other = replace(job, global_batch=round(size), total_steps=job.total_steps * batch / size)
        told_s[float(size)] = tuple(np.nan_to_num(steps_s(other, counts[runs]), nan=np.inf))
    phases = max(round(job.epochs), 1)
    dataset = job.feed.dataset_samples
    if not job.epochs and dataset:
        phases = max(round(job.total_steps * batch / dataset), 1)
    done = on_demand(job, columns, 0.9)
    besides = done.from_first_step_s / done.parts_s["steps"] - 1.0
    layouts = tuple(_layout_name(columns, at) for at in np.flatnonzero(runs).tolist())
    # The state goes out as one layout keeps it, and in as the other needs it.
    link = predictor.fleet.network_bytes_per_s[row.index]
    return JobFigures(
        samples=job.total_steps * batch,
        phases=phases,
        batch=batch,
        scaling=WorkerScaling(
            workers=tuple(counts[runs].tolist()), step_s=alone_s, sample_s=sample_s,
            sync_s=tuple(sync_s[runs].tolist()),
            spread_fraction=spread.straggler_sd_fraction,
            layouts=layouts if len(set(layouts)) > 1 else (),
            relayout_s=float(2.0 * job.state_bytes / link) if link > 0 else 0.0,
            besides=tuple(np.maximum(besides[runs], 0.0).tolist()),
            told_s=told_s,
        ),
        price_usd_per_h=float(offers.price_usd_per_h[place]),
        startup_s=float(done.before_s[0]),
        source=f"{job.name} on {row.name} ({row.provider})",
        noise=job.noise,
        assumed_noise=assumed_noise(job),
        vcpus=float(row.vcpus or 0.0),
        gib=(row.memory_bytes or 0.0) / GIB,
        accelerator=(row.accelerator or "") if row.accelerator_count else "",
        machine=f"{row.provider}:{row.name}",
        row=row.index,
    )  # fmt: skip


def assumed_noise(job: Job) -> tuple[float, ...]:
    """Return the noise scale of a described language model that is trained whole [samples]."""
    work = job.work
    model = None if work is None else work.transformer
    if model is None or work is None or model.experts > 1 or job.noise is not None:
        return ()
    if job.measured is not None or trained_share(work) < 1 or work.setup.stack == "trainer":
        return ()
    own = transformer_parameters(model) - model.vocabulary * model.hidden
    found = language_noise(
        own, model.vocabulary, job.global_batch * model.sequence, job.total_steps, _POINTS
    )
    return tuple(one / model.sequence for one in found)


def noise_over(known: JobFigures, growth: float = 1.0) -> tuple[float, ...]:
    """Return the noise scale at points of the training: recorded, else assumed; () unknown.

    ``growth``: of what was recorded, until the end.
    """
    seen = known.noise
    return known.assumed_noise if seen is None else (seen.samples, growth * seen.samples)


def phases_of(known: JobFigures, points: Sequence[float], count: int | None = None) -> list[Phase]:
    """Return equal phases of the job's own samples, the noise geometric between its points.

    They are those of the job by default; where it has one and its noise grows, as many as there
    are doublings of it, and one. Whatever their number, at its own batch the job is as long.
    """
    if count is None:
        count = known.phases
        if points and count == 1:
            count = math.ceil(math.log2(max(points) / min(points))) + 1
    scales = over_phases(points, count) if points else [None] * count
    each = known.samples / count
    return [
        Phase(samples=each / (1.0 + known.batch / one if one else 1.0), noise_batch=one)
        for one in scales
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRun:
    """Phases in a row with the same workers and batch: a run from checkpoint to checkpoint."""

    workers: int
    batch: float  # [samples]
    steps: float
    time_h: float  # the standstill of a resize included [h]
    commands: tuple[str, ...]  # how it is started; empty where nothing released does


def phase_runs(
    predictor: Predictor, job: Job, known: JobFigures, phases: Sequence[Phase],
    schedule: Schedule, *, script: Sequence[str] = (),
) -> tuple[PhaseRun, ...]:  # fmt: skip
    """Return what to start in which phase; nothing where the job cannot run so.

    ``script``: the command line that a recorded job was started with.
    """
    found, row = [], known.row
    steps = [
        float(phase.needed_samples(np.array(batch))) / batch
        for phase, batch in zip(phases, schedule.batches, strict=True)
    ]
    alike = zip(schedule.workers, schedule.batches, steps, schedule.phase_s, strict=True)
    for (workers, batch), group in groupby(alike, key=lambda one: one[:2]):
        rows = list(group)
        count, taken_s = sum(one[2] for one in rows), sum(one[3] for one in rows)
        then = replace(job, global_batch=round(batch), total_steps=max(count, 1.0))
        columns = predictor.step_columns(then, np.array([row]), np.array([workers]))
        if columns.status[0]:
            return ()
        started, _ = commands(
            predictor.case(then), row, columns.layout(0), group=known.machine, nodes=workers,
            space=SPACE, script=script,
        )  # fmt: skip
        found.append(PhaseRun(
            workers=workers, batch=batch, steps=count,
            time_h=taken_s / HOUR_S,
            commands=tuple(one.text for one in started),
        ))  # fmt: skip
    return tuple(found)


def _layout_name(columns: TimeColumns, at: int) -> str:
    """Say how the state lies: what differs between two counts has to be moved."""
    layout = columns.layout(at)
    shards = layout.shard_group or layout.dp if layout.zero_stage else 1
    return f"tp{layout.tp} pp{layout.pp} shards{shards}"
