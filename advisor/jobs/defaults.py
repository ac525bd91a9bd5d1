"""Defaults of a described job where its user does not say: batch and sequence.

| model                             | samples of a step | source                                  |
|-----------------------------------|-------------------|-----------------------------------------|
| decoder, trained whole            | 0.5 to 4 M tokens | GPT-3, 2020, table 2.1; Llama 2, 3      |
| any, adapters or frozen layers    | 128               | Alpaca (Taori et al., 2023)             |
| encoder of text                   | 256               | BERT (Devlin et al., 2019, A.2)         |
| encoder of pictures               | 1,024             | DeiT (Touvron et al., 2021, table 9)    |
| convolutional network             | 256               | He et al., 2016, section 3.4            |
| encoder-decoder of text           | 128               | T5 (Raffel et al., 2020, section 3.1.2) |
| encoder-decoder of speech         | 256               | Whisper (Radford et al., 2022, app. F)  |
| diffusion U-Net                   | 2,048             | model card of Stable Diffusion 1.5      |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from advisor.planners.core.nouns import TrainingSetup, Transformer
from advisor.planners.core.transformer import transformer_parameters
from advisor.planners.step.describe_config import DescribedModel
from advisor.planners.step.describe_convolutions import ConvolutionalNetwork
from advisor.planners.step.diffusion_unet import DiffusionUNet
from advisor.planners.step.encoder_decoder import EncoderDecoder

# (parameters below, tokens of a step): GPT-3's sizes up to 13 B, Llama 2's batch above.
_TOKENS: Final = ((2e9, 2**19), (10e9, 2**20), (20e9, 2**21), (float("inf"), 2**22))
_FINE_TUNED: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A value that was taken, and what to say of it."""

    value: int
    note: str


def default_batch(model: DescribedModel, setup: TrainingSetup) -> Default:
    """Return the samples of a step over all devices where none are given.

    Examples
    --------
    >>> gpt2 = Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)
    >>> default_batch(gpt2, TrainingSetup()).value
    512
    """
    if setup.has_adapters or setup.frozen_fraction > 0:
        return _default(_FINE_TUNED, "as in fine-tuning of Alpaca")
    if isinstance(model, ConvolutionalNetwork):
        return _default(256, "as ResNet was trained")
    if isinstance(model, EncoderDecoder):
        if model.audio_channels:
            return _default(256, "as Whisper was trained")
        return _default(128, "as T5 was trained")
    if isinstance(model, DiffusionUNet):
        return _default(2048, "as Stable Diffusion was trained")
    if not model.is_causal:
        seen = (256, "BERT") if model.vocabulary else (1024, "DeiT")
        return _default(seen[0], f"as {seen[1]} was trained")
    parameters = transformer_parameters(model)
    tokens = next(tokens for below, tokens in _TOKENS if parameters < below)
    # A power of two, which layouts divide.
    samples = 2 ** (max(tokens // model.sequence, 1).bit_length() - 1)
    return _default(
        samples, f"about {tokens / 2**20:g} M tokens, as models of {parameters / 1e9:.3g} B were"
        " trained",
    )  # fmt: skip


def described_defaults(
    model: DescribedModel, setup: TrainingSetup, *, batch: int | None
) -> tuple[int, tuple[str, ...]]:
    """Return the batch of a described job, and what was taken for it without being said.

    Returns
    -------
    batch : int
        Samples of a step over all devices.
    assumptions : tuple of str
        Sentences for the answer.
    """
    said = []
    if batch is None:
        found = default_batch(model, setup)
        batch = found.value
        said.append(found.note)
    if isinstance(model, DiffusionUNet):
        said.append("text encoder and autoencoder are not counted: their outputs are stored")
    return batch, tuple(said)


def _default(value: int, why: str) -> Default:
    return Default(
        value=value, note=f"no batch was given: {value} samples a step, {why}; --batch sets it"
    )


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
