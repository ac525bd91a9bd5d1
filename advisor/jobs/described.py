"""Jobs that were never run: a model described in a few numbers or by its configuration file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.errors import UsageError
from advisor.jobs.job import Feed, Job
from advisor.planners.core.nouns import DEFAULT_SETUP, Precision, TrainingSetup, Transformer, Work
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_config import (
    DescribedModel,
    longest_sequence,
    read_config,
)
from advisor.planners.step.describe_convolutions import ConvolutionalNetwork, convolutional_work
from advisor.planners.step.diffusion_unet import DiffusionUNet, diffusion_work
from advisor.planners.step.encoder_decoder import EncoderDecoder, encoder_decoder_work

NO_LENGTH: Final = "no length was given: one step"


def read_model(
    path: Path, *, sequence: int | None = None, image: int | None = None
) -> DescribedModel:
    """Read the model of a Hugging Face ``config.json``, or of the folder that has one.

    ``sequence``: tokens of a sample; as long as the model allows where not given, at most 8,192;
    ``image``: side of an image, for models that see.

    Raises UsageError if the file cannot be read. Raises PlanningError if it lacks a dimension, or
    the model is of a form that cannot be described.
    """
    return read_config(read_content(path), sequence=sequence, image=image)


def read_longest(path: Path) -> int | None:
    """Read the longest sequence that a model allows, where its ``config.json`` says so.

    Raises UsageError if the file cannot be read.
    """
    return longest_sequence(read_content(path))


def read_content(path: Path) -> dict[str, Any]:
    """Read a model's ``config.json``, or that of the folder.

    Raises UsageError if it cannot be read or is no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = bounded.read_json(file)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the model {file}: {error}",
            hint="name the config.json of a Hugging Face model, or give --layers, --hidden, ...",
        ) from error
    if not isinstance(config, dict):
        raise UsageError(
            f"{file} is not the configuration of a model", hint="it is a JSON object with sizes"
        )
    return config


def model_work(
    model: DescribedModel, *, micro_batch: int, precision: Precision,
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
    """Return what a step of a described model computes.

    Raises PlanningError if a size is not positive or the precision is unknown.
    """
    describe: Any = {
        Transformer: transformer_work,
        ConvolutionalNetwork: convolutional_work,
        EncoderDecoder: encoder_decoder_work,
        DiffusionUNet: diffusion_work,
    }[type(model)]
    work: Work = describe(model, micro_batch=micro_batch, precision=precision, setup=setup)
    return work


def described_job(
    work: Work, *, name: str, global_batch: int | None = None, steps: float | None = None,
    assumptions: tuple[str, ...] = (),
) -> Job:  # fmt: skip
    """Return the job of a described model; nothing of it was measured.

    ``global_batch``: samples of a step over all workers; the work's micro-batch by default;
    ``steps``: the length; one step without; ``assumptions``: what was taken because nobody said
    otherwise.

    Raises UsageError if a length or batch makes no sense.
    """
    for value in (global_batch, steps):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"not a length or batch: {value}", hint="give a positive number")
    batch = global_batch or work.micro_batch
    total, source = 1.0, NO_LENGTH
    if steps is not None:
        total, source = steps, "given: --total-steps"
    return Job(
        name=name,
        work=work,
        program=None,
        global_batch=batch,
        total_steps=total,
        total_source=source,
        # A loader of its own that keeps up: how long a sample takes was not seen.
        feed=Feed(workers=1, cpu_s_per_sample=None, wait_s=0.0, sample_bytes=None,
                  dataset_samples=None),
        measured=None,
        peak_rss_bytes=0,
        recorded_batch=work.micro_batch,
        assumptions=assumptions,
    )  # fmt: skip
