"""A job with other training software than it was recorded or described with."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.core.nouns import TrainingSetup, Work
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_updates import update
from advisor.question import SetupRequest

# What a recorded step can be asked about: the others change what it computes.
_OF_A_RECORDING: Final = frozenset({"kernels", "optimizer", "weights", "overlaps"})
_FLAGS: Final = {
    "adapter_rank": "--lora",
    "frozen_fraction": "--frozen",
    "base_bits": "--base-bits",
}


def with_setup(job: Job, request: SetupRequest) -> Job:
    """Return the job as this software would train it.

    A described transformer is described anew. Of a recorded step the bytes of weights and
    optimizer state follow; its operators stay as they were traced.

    Raises UsageError if the job has no training steps, or a recorded step would compute something
    else. Raises PlanningError if the settings contradict one another.
    """
    given = request.given
    if not given:
        return job
    if job.work is None:
        raise UsageError(
            f"{job.name} has no training steps that {_flag(next(iter(given)))} could change",
            hint="leave it out",
        )
    work, setup = job.work, replace(job.work.setup, **given)
    if work.transformer is not None and job.measured is None:
        return replace(job, work=described_anew(work, setup=setup))
    for name in given.keys() - _OF_A_RECORDING:
        raise UsageError(
            f"{_flag(name)} changes what a recorded step computes",
            hint="record a run that trains so, or describe the model: --model config.json",
        )
    return replace(job, work=_restated(work, setup))


def described_anew(
    work: Work, *, micro_batch: int | None = None, setup: TrainingSetup | None = None
) -> Work:
    """Return a described transformer's work in another micro-batch or with other software.

    Raises ValueError if the work is of no transformer.
    """
    if work.transformer is None:
        raise ValueError("only a transformer's work can be described anew")
    return transformer_work(
        work.transformer,
        micro_batch=micro_batch or work.micro_batch,
        precision=work.precision,
        setup=setup or work.setup,
    )


def _restated(work: Work, setup: TrainingSetup) -> Work:
    """Return recorded work with the bytes of other weights and optimizer states."""
    changed = replace(work, setup=setup)
    if setup.optimizer != work.setup.optimizer or setup.weights != work.setup.weights:
        kept = setup.moment_bytes(work.precision) * work.trainable_parameters
        updated = update(
            work.trainable_parameters, setup, work.precision, tensors=2 * len(work.layers)
        )
        changed = replace(
            changed,
            optimizer_state_bytes=kept,
            operators=(*(o for o in work.operators if o.phase != "optimizer"), updated),
        )
    if setup.weights != work.setup.weights:
        stored = setup.stored_bytes(work.precision) * work.parameters
        changed = replace(changed, parameter_bytes=stored)
    return changed


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name}")
