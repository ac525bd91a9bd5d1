"""Published training runs as questions to the estimate.

A run is described by its columns and put to the machines that it had. What a source leaves open
is filled in by rule, and counted (``Assumption``):

- Without a number of accelerators: as many as end within a month at 40 % of the datasheet rate,
  a power of two of machines (the published months of the LLaMA runs; no published hours are read).
- Without a batch: GPT-3's table 2.1 by size; LLaMA's 4 million tokens from 6 billion parameters.
- The batch is the nearest that the accelerators share evenly, within a tenth: no recipe trains on
  479 sequences.
- Sequences longer than 8,192 are the model's longest context; most tokens were trained at 8,192.
- Without a network: that of the accelerator's usual machine (DGX-1, DGX A100, DGX H100).
- Software of 2022 and before had no flash attention (arXiv 2205.14135, May 2022).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from advisor.catalogue import Accelerator, Catalogue
from advisor.errors import AdvisorError
from advisor.jobs.described import described_job, model_work
from advisor.jobs.job import Job
from advisor.machines.cluster import ClusterGroup
from advisor.machines.cluster_text import parse_cluster
from advisor.planners.core.nouns import Transformer
from advisor.planners.core.setup import Precision, TrainingSetup
from advisor.planners.core.transformer import transformer_parameters
from advisor.planners.core.units import HOUR_S
from advisor.records.campaigns import Campaign

Assumption = Literal["accelerators", "batch", "rounded batch", "sequence", "network"]

_LONGEST_SEQUENCE: Final = 8192
# Dense parameters that the dimensions give may differ so much from the stated ones: embeddings
# tied or not, biases, rounding. Beyond, it is another model (mixture of experts).
_SAME_MODEL: Final = 0.15
_PER_NODE: Final = 8
# A factor of a batch that one rank can take in micro-batches of one.
_SMALL: Final = 16
_MONTH_H: Final = 30 * 24.0
_USUAL_MFU: Final = 0.4
# GPT-3 (arXiv 2005.14165), table 2.1: parameters -> tokens of a batch; LLaMA (2302.13971): 4M.
_BATCH_TOKENS: Final = ((0.0, 0.5e6), (1e9, 1e6), (6e9, 4e6))
# DGX-1 4 x 100, DGX A100 8 x 200, DGX H100 8 x 400 Gbit/s (datasheets), by architecture.
_NETWORK_GBPS: Final = {"Volta": 400.0, "Ampere": 1600.0, "Hopper": 3200.0}
_OTHER_NETWORK_GBPS: Final = 100.0
_FUSED_BY_HAND: Final = ("megatron", "nemo", "neox", "metaseq", "fairseq", "xformers", "llm.c")
_FLASH_ATTENTION_YEAR: Final = 2023


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignQuestion:
    """A published run as it is put to the estimate."""

    campaign: Campaign
    transformer: Transformer
    machines: ClusterGroup
    job: Job  # described: its setup, sequences of a step and steps
    assumed: tuple[Assumption, ...]  # what was filled in, see the module


class UnusableError(Exception):
    """A run that cannot be put to the estimate; the message is the reason that is counted."""


def ask(campaign: Campaign, catalogue: Catalogue) -> CampaignQuestion:
    """Describe a run and its machines.

    Raises UnusableError if the row does not say enough, or the estimate knows no such model or
    accelerator.
    """
    transformer, assumed = _transformer(campaign)
    if not campaign.tokens:
        raise UnusableError("no number of tokens")
    accelerator = _accelerator(campaign, catalogue)
    devices = campaign.accelerators
    if devices is None:
        devices = _month_of(campaign, transformer, accelerator)
        assumed.append("accelerators")
    network = _stated_gbps(campaign.interconnect)
    if network is None and devices > _PER_NODE:
        assumed.append("network")
    usual = _NETWORK_GBPS.get(accelerator.architecture, _OTHER_NETWORK_GBPS)
    batch = _batch(campaign, transformer, devices, assumed)
    per_node = math.gcd(devices, _PER_NODE)
    text = f"{devices // per_node}x{per_node}x{accelerator.name}@{network or usual:g}Gbps"
    return CampaignQuestion(
        campaign=campaign,
        transformer=transformer,
        machines=parse_cluster(text, catalogue).groups[0],
        job=described_job(
            model_work(
                transformer, micro_batch=1, precision=_precision(campaign), setup=_setup(campaign)
            ),
            name=campaign.campaign,
            global_batch=batch,
            steps=campaign.tokens / (batch * transformer.sequence),
        ),
        assumed=tuple(assumed),
    )


def _transformer(c: Campaign) -> tuple[Transformer, list[Assumption]]:
    if not (c.layers and c.hidden and c.heads and c.vocabulary and c.sequence):
        raise UnusableError("no transformer's dimensions")
    assumed: list[Assumption] = ["sequence"] if c.sequence > _LONGEST_SEQUENCE else []
    sizes = [
        Transformer(
            layers=c.layers, hidden=c.hidden, heads=c.heads, vocabulary=c.vocabulary,
            sequence=min(c.sequence, _LONGEST_SEQUENCE), kv_heads=c.kv_heads, ffn=c.ffn,
            is_gated=c.is_gated, has_tied_embeddings=is_tied,
        )
        for is_tied in (True, False)
    ]  # fmt: skip
    if c.parameters is None:
        return sizes[0], assumed
    stated = c.parameters
    nearest = min(sizes, key=lambda t: abs(math.log(transformer_parameters(t) / stated)))
    if abs(transformer_parameters(nearest) / stated - 1) > _SAME_MODEL:
        raise UnusableError("the dimensions are not those of the stated parameters")
    return nearest, assumed


def _accelerator(c: Campaign, catalogue: Catalogue) -> Accelerator:
    """Return the catalogue's row: the form for servers, of the stated or else most memory."""
    try:
        named = [catalogue.accelerators[n] for n in catalogue.matching_gpus(c.accelerator)]
    except AdvisorError:
        raise UnusableError("no model of the accelerator") from None
    memory = c.accelerator_memory_gb
    usable = [a for a in named if memory is None or a.memory_gb == memory]
    if not usable:
        raise UnusableError("no model of the accelerator")
    return max(usable, key=lambda a: ("SXM" in a.name, a.memory_gb, a.name))


def _month_of(c: Campaign, transformer: Transformer, accelerator: Accelerator) -> int:
    peak = accelerator.bf16_flop_per_s or accelerator.fp16_flop_per_s
    if not peak or not c.tokens:
        raise UnusableError("no model of the accelerator")
    flop = 6 * (c.parameters or transformer_parameters(transformer)) * c.tokens
    nodes = flop / (_USUAL_MFU * peak * HOUR_S) / _MONTH_H / _PER_NODE
    return int(_PER_NODE * 2 ** max(round(math.log2(nodes)), 0))


def _batch(c: Campaign, transformer: Transformer, devices: int, assumed: list[Assumption]) -> int:
    tokens = c.global_batch_tokens
    if tokens is None:
        assumed.append("batch")
        size = c.parameters or transformer_parameters(transformer)
        tokens = [batch for least, batch in _BATCH_TOKENS if size >= least][-1]
    stated = max(round(tokens / transformer.sequence), 1)
    batch = divisible_batch(stated, devices)
    if batch != stated and c.global_batch_tokens is not None:
        assumed.append("rounded batch")
    return batch


def divisible_batch(batch: int, devices: int) -> int:
    """Return the nearest batch within a tenth that the devices share evenly.

    An eighth of the devices divides it (tensor and pipeline parallel layouts take the rest), all
    of one machine do, and what is left is small or has no prime factor above 7. Where there is no
    such batch, it is the one with the largest common divisor.

    >>> divisible_batch(479, 8), divisible_batch(976, 992), divisible_batch(1024, 64)
    (480, 992, 1024)
    """
    near = range(max(math.ceil(0.9 * batch), 1), math.floor(1.1 * batch) + 1)
    least = max(devices / 8, min(devices, _PER_NODE))
    shared = {b: math.gcd(b, devices) for b in near}
    good = [b for b in near if shared[b] >= least and _is_smooth(b // shared[b])]
    if not good:
        good = [b for b in near if shared[b] == max(shared.values())]
    return min(good, key=lambda b: abs(b - batch))


def _is_smooth(number: int) -> bool:
    if number < _SMALL:
        return True
    for prime in (2, 3, 5, 7):
        while number % prime == 0:
            number //= prime
    return number == 1


def _stated_gbps(text: str) -> float | None:
    """Return a machine's network as stated; a lone rate is that of each of its eight devices."""
    if found := re.search(r"(\d+)\s*x\s*(\d+)\s*Gb", text):
        return float(found[1]) * float(found[2])
    if found := re.search(r"(\d+)\s+ConnectX-6", text):
        return float(found[1]) * 200.0
    if found := re.search(r"(\d+)\s*Gb", text):
        return float(found[1]) * _PER_NODE
    return None


def _setup(c: Campaign) -> TrainingSetup:
    framework = c.framework.lower()
    is_fused = any(name in framework for name in _FUSED_BY_HAND)
    return TrainingSetup(
        kernels="fused" if is_fused else "compiled",
        attention="flash" if c.year >= _FLASH_ATTENTION_YEAR else "unfused",
    )


def _precision(c: Campaign) -> Precision:
    """Return what the products ran in as stated, 16 bits where nothing is."""
    text = c.precision.lower()
    known: tuple[Precision, ...] = ("fp8", "tf32", "fp16", "fp32")
    return next((name for name in known if text.startswith(name)), "bf16")
