"""Jobs that were never run: a model described in a few numbers or by its configuration file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.answer import object_in
from advisor.collectors.errors import counted
from advisor.errors import UsageError
from advisor.jobs.job import Feed, Job
from advisor.jobs.model_facts import NO_LENGTH
from advisor.planners import step
from advisor.planners.core import (
    DEFAULT_SETUP,
    PlanningError,
    Precision,
    TrainingSetup,
    Transformer,
    Work,
    transformer_parameters,
)
from advisor.planners.step import ConvolutionalNetwork, convolutional_work, transformer_work

if TYPE_CHECKING:
    from advisor.planners.step import DescribedModel

_CONFIG: Final = "config.json"
_PROFILE: Final = "profile one step of it instead: advisor profile train.py"


def read_model(
    path: Path, *, sequence: int | None = None, image: int | None = None
) -> DescribedModel:
    """Read the model of a Hugging Face ``config.json``, of the folder that has one, or of a name.

    ``sequence``: tokens of a sample; as long as the model allows where not given, at most 8,192;
    ``image``: side of an image, for models that see.

    Raises UsageError if the file cannot be read, or nothing is known by the name. Raises
    PlanningError if it lacks a dimension, or the model is of a form that cannot be described.
    """
    try:
        return step.read_config(read_content(path), sequence=sequence, image=image)
    except PlanningError as error:
        if not (known := _known(path)):
            raise
        # Its whole configuration says no more.
        raise PlanningError(f"{known[0]}: {error}", hint=_PROFILE, exit_code=2) from error


# A model's name on a hub, of an organisation or without: no path of somebody's disk.
_HUB_NAME: Final = re.compile(r"(?:[\w.-]*\w/)?(\w[\w.-]*)")


def model_name(path: Path) -> str:
    """Return what a model is called: the name asked for, its file's own, else what the file says.

    A file of the usual name that says none has its folder's.

    Raises UsageError if the file cannot be read.
    """
    if known := _known(path):
        return known[0]
    file = (path / _CONFIG if path.is_dir() else path).resolve()
    if file.name != _CONFIG:
        return file.stem
    said = _HUB_NAME.fullmatch(str(read_content(file).get("_name_or_path") or ""))
    return said[1] if said else file.parent.name or "model"


def _known(path: Path) -> tuple[str, dict[str, Any]] | None:
    from advisor.jobs.named import named_model  # most jobs are recorded, and name no model

    return named_model(path)


def read_content(path: Path) -> dict[str, Any]:
    """Read a model's ``config.json``, or that of the folder, or what is known of a name.

    Raises UsageError if it cannot be read or is no JSON object.
    """
    if known := _known(path):
        return known[1]
    file = path / _CONFIG if path.is_dir() else path
    hint = "name the config.json of a Hugging Face model, or give --layers, --hidden, ..."
    return object_in(file, "the model", error=UsageError, hint=hint)


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
        step.ListedNetwork: step.listed_work,
        step.EncoderDecoder: step.encoder_decoder_work,
        step.DiffusionUNet: step.diffusion_work,
        step.Towers: step.towers_work,
    }[type(model)]
    work: Work = describe(model, micro_batch=micro_batch, precision=precision, setup=setup)
    return work


def described_job(
    work: Work, *, name: str, global_batch: int | None = None, steps: float | None = None,
    assumptions: tuple[str, ...] = (), unseen: str = "",
) -> Job:  # fmt: skip
    """Return the job of a described model; nothing of it was measured.

    ``global_batch``: samples of a step over all workers; the work's micro-batch by default;
    ``steps``: the length; one step without; ``assumptions``: what was taken because nobody said
    otherwise; ``unseen``: what it loads in a way that nobody saw (``Feed.unseen``).

    Raises UsageError if a length or batch makes no sense.
    """
    for value in (global_batch, steps):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"not a length or batch: {value}", hint="give a positive number")
    batch = global_batch or work.micro_batch
    return Job(
        name=name,
        work=work,
        program=None,
        global_batch=batch,
        total_steps=1.0 if steps is None else steps,
        total_source=NO_LENGTH if steps is None else "given: --total-steps",
        # A loader of its own that keeps up: how long a sample takes was not seen.
        feed=Feed(workers=1, unseen=unseen),
        measured=None,
        peak_rss_bytes=0,
        recorded_batch=work.micro_batch,
        assumptions=assumptions,
    )  # fmt: skip


def unseen_input(model: DescribedModel) -> str:
    """Return what a described model is fed with that takes work to load; nothing for text."""
    if isinstance(model, step.EncoderDecoder):
        return "recordings" if model.audio_channels else ""
    if isinstance(model, step.DiffusionUNet):
        return "samples"
    if isinstance(model, step.Towers):
        return "samples" if len(model.towers) > 1 else "recordings"
    if isinstance(model, ConvolutionalNetwork | step.ListedNetwork):
        return "images"
    return "" if model.vocabulary else "images"


# (parameters below, tokens of a step): GPT-3's sizes up to 13 B, Llama 2's batch above.
_TOKENS: Final = ((2e9, 2**19), (10e9, 2**20), (20e9, 2**21), (float("inf"), 2**22))
_FINE_TUNED: Final = 128


def default_batch(model: DescribedModel, setup: TrainingSetup) -> tuple[int, str]:
    """Return the samples of a step over all devices where none are given, and whose they are.

    | model                         | samples of a step | source                                  |
    |-------------------------------|-------------------|-----------------------------------------|
    | decoder, trained whole        | 0.5 to 4 M tokens | GPT-3, 2020, table 2.1; Llama 2, 3      |
    | any, adapters, frozen layers  | 128               | Alpaca (Taori et al., 2023)             |
    | encoder of text               | 256               | BERT (Devlin et al., 2019, A.2)         |
    | encoder of pictures           | 1,024             | DeiT (Touvron et al., 2021, table 9)    |
    | convolutional network         | 256               | He et al., 2016, section 3.4            |
    | detector                      | 64                | Ultralytics' nominal batch (``nbs``)    |
    | encoder-decoder of text       | 128               | T5 (Raffel et al., 2020, section 3.1.2) |
    | encoder-decoder of speech     | 256               | Whisper (Radford et al., 2022, app. F)  |
    | diffusion U-Net               | 2,048             | model card of Stable Diffusion 1.5      |
    | pictures beside words         | 32,768            | CLIP (Radford et al., 2021, table 18)   |
    | encoder of sound              | 384 (1.6 h)       | wav2vec 2.0 (Baevski et al., 2020, 4.2) |

    Examples
    --------
    >>> gpt2 = Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)
    >>> default_batch(gpt2, TrainingSetup())[0]
    512
    """
    if setup.has_adapters or setup.frozen_fraction > 0:
        return _FINE_TUNED, "as in fine-tuning of Alpaca"
    if isinstance(model, ConvolutionalNetwork):
        return 256, "as ResNet was trained"
    if isinstance(model, step.ListedNetwork):
        return 64, "as Ultralytics trains"
    if isinstance(model, step.EncoderDecoder):
        return (256, "as Whisper was trained") if model.audio_channels else (
            128, "as T5 was trained"
        )  # fmt: skip
    if isinstance(model, step.DiffusionUNet):
        return 2048, "as Stable Diffusion was trained"
    if isinstance(model, step.Towers):
        sound = 384, "about 1.6 h of sound, as wav2vec 2.0 was trained"
        return (2**15, "as CLIP was trained") if len(model.towers) > 1 else sound
    if not model.is_causal:
        return (256, "as BERT was trained") if model.vocabulary else (1024, "as DeiT was trained")
    parameters = transformer_parameters(model)
    tokens = next(tokens for below, tokens in _TOKENS if parameters < below)
    # A power of two, which layouts divide.
    samples = 2 ** (max(tokens // model.sequence, 1).bit_length() - 1)
    meant = f"{tokens / 2**20:g} M tokens, as models of {parameters / 1e9:.3g} B were trained"
    return samples, f"about {meant}"


def described_defaults(
    model: DescribedModel, setup: TrainingSetup, *, batch: int | None
) -> tuple[int, tuple[str, ...]]:
    """Return the samples of a step over all devices, and sentences on what nobody said of them."""
    said = []
    if batch is None:
        batch, why = default_batch(model, setup)
        usual = f"{counted(batch, 'sample')} a step, {why}"
        said.append(f"no batch was given: {usual}; --batch sets it")
    if isinstance(model, step.DiffusionUNet):
        said.append("text encoder and autoencoder are not counted: their outputs are stored")
    return batch, tuple(said)


def sequence_notes(model: DescribedModel, longest: int | None) -> tuple[str, ...]:
    """Return what to say of a sequence that was not given: nothing where it is the longest.

    ``longest``: tokens that the model allows, where its configuration says so.
    """
    if not isinstance(model, Transformer) or not model.vocabulary:
        return ()
    if longest is not None and longest <= model.sequence:
        return ()
    most = "" if longest is None else f", of at most {longest:,}"
    return (
        f"no sequence was given: {model.sequence:,} tokens a sample{most}; --sequence sets it",
    )
