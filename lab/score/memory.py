"""Protocol ``memory``: how much the fullest device takes, and which runs run out of it.

One table of rows (``lab.fit.memory``): published layouts, told what their framework keeps;
readings of fine-tuning, asked as a user types them (``lab.fit.memory_asked``); SimuMax's B200s. A
reading is compared by its own definition (what was allocated, reserved, or what a monitor shows).
Constants and widths are fitted without the row's source. A run is refused by the rule of the
layouts' search (``over_bytes``): what is kept free, and of what is rented a probability too; the
other rules are curves beside it. Single operations of
``kernels`` check the terms: bytes by closed form over what PyTorch allocated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from advisor.estimate.ways.data_parallel import kept_free_bytes
from advisor.lab.data import BLACKWELL, MEMORY
from advisor.lab.fit import asked
from advisor.lab.fit.memory import PRE_TRAINING, MemoryRows, fit_rows, read_memory
from advisor.lab.score import baselines
from advisor.lab.score.harness import Answers, Blinded, Bools, Floats, Protocol, Questions, by
from advisor.planners.core.errors import GIB, MIB
from advisor.planners.layouts.problem import RENTED
from advisor.planners.memory.transformers import (
    UNSEEN,
    MemoryConstants,
    deviation_bytes,
    ledger,
    without_terms,
)
from advisor.quantities import REACH_90

SHARES: Final = (0.8, 0.9, 0.95, 1.0)  # of a card's memory
SURE: Final = (0.6, 0.7, 0.8, 0.9)  # probabilities to fit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """The rows, and the peaks of single operations."""

    known: MemoryRows
    kernels: Any  # frame of ``MEMORY.tables["kernels"]``
    simumax_bytes: Floats  # what SimuMax says of its own machine; nan elsewhere

    @property
    def capacity_bytes(self) -> Floats:
        return self.known.capacity_bytes


def read_rows(data: Path) -> Questions:
    """Return every run whose memory was read or that ran out of it; truth is what was read.

    Raises ModelError if a table is missing or holds nothing to ask.
    """
    known = read_memory(data)
    kinds = {"technique ": known.technique, "read as ": known.definition}
    steps = BLACKWELL.read("steps", data).set_index("case").simumax_allocated_gib
    said = [steps.get(name, np.nan) if table == asked.TABLE else np.nan
            for name, table in zip(known.rows.row_id, known.rows.table, strict=True)]  # fmt: skip
    return Questions(
        questions=[
            f"bytes of the fullest device of {name} on {gpu}"
            for name, gpu in zip(known.rows.row_id, known.rows.gpu, strict=True)
        ],
        truth=np.where(known.is_reading, known.measured_bytes, np.nan),
        unseen=[str(table) for table in known.rows.table],
        groups=by(known.rows.table, is_sorted=False)
        | {name: mask for prefix, column in kinds.items()
           for name, mask in by(column, prefix=prefix).items()},
        facts=MemoryFacts(known=known, kernels=MEMORY.read("kernels", data),
                          simumax_bytes=np.array(said, float) * GIB),
        raw=baselines.layout_columns(known.rows, known.rows.table),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTold:
    """What is said of every row: what was read, and what must have room, with deviations."""

    value: Floats
    value_sd: Floats
    needed: Floats
    needed_sd: Floats


def _told(known: MemoryRows, constants: MemoryConstants) -> MemoryTold:
    terms = known.terms(constants)
    parts = known.rows.shapes, known.rows.layouts, known.rows.software
    fullest, size = ledger(*parts, constants), len(known.rows)
    return MemoryTold(
        value=known.read(terms),
        value_sd=known.deviation(terms, constants),
        needed=np.broadcast_to(without_terms(fullest, UNSEEN["needed"]), size),
        needed_sd=deviation_bytes(fullest, constants) * known.spread(constants),
    )


def told_by_others(known: MemoryRows) -> MemoryTold:
    """Say of each source what the others tell."""
    found = np.full((4, len(known.rows)), np.nan)
    for source in np.unique(known.rows.table):
        out = known.rows.table == source
        told = _told(known, fit_rows(known, known.is_reading & ~out))
        found[:, out] = [part[out] for part in (told.value, told.value_sd, told.needed,
                                                told.needed_sd)]  # fmt: skip
    value, value_sd, needed, needed_sd = found
    return MemoryTold(value=value, value_sd=value_sd, needed=needed, needed_sd=needed_sd)


def _answered(rows: Questions, told: MemoryTold) -> Answers:
    half = REACH_90 * told.value_sd / told.value
    return Answers(
        value=told.value, low=told.value * np.exp(-half), high=told.value * np.exp(half),
        figures=_figures(rows, told, half),
        notes=(
            "readings are of what was looked at: BigScience's V100 pipelines on the first stage; "
            "failures are of the fullest device",
            "verdicts are of every run whose source says what failed",
            "fine-tuning by words that a user types; what software of its day kept otherwise, and "
            "no word says, is put in for peft's benchmark, litgpt, Qwen and the Trainer",
        ),
    )  # fmt: skip


def _answers(rows: Questions) -> Answers:
    return _answered(rows, told_by_others(rows.facts.known))


def memory_answers(rows: Questions, constants: MemoryConstants) -> Answers:
    """Return what some constants say of every row, whatever they were fitted on."""
    return _answered(rows, _told(rows.facts.known, constants))


def _figures(rows: Questions, told: MemoryTold, half: Floats) -> dict[str, float]:
    """Return means over sources, verdicts by every rule, and the check of terms."""
    known: MemoryRows = rows.facts.known
    error = np.abs(told.value / rows.truth - 1)
    inside = np.abs(np.log(told.value / rows.truth)) <= half
    figures: dict[str, float] = {}
    for name, mask in ((PRE_TRAINING, ~known.is_tuning), ("fine-tuning", known.is_tuning)):
        figures[f"{name}, mean of sources, MAPE"] = _of_sources(known, error, mask)
        figures[f"{name}, mean of sources, coverage"] = _of_sources(known, inside, mask)
        figures[f"{name}, median half-width in ln"] = float(
            np.median(half[mask & known.is_reading])
        )
    return {
        **{name: round(value, 6) for name, value in figures.items()},
        **_verdicts(known, told),
        **kernel_ratios(rows.facts.kernels),
    }


def _of_sources(known: MemoryRows, column: Any, among: Bools) -> float:
    """Return the mean of a column over the readings of each source, and over sources."""
    kept = among & known.is_reading
    sources = known.rows.table
    return float(np.mean([column[kept & (sources == s)].mean() for s in np.unique(sources[kept])]))


def _verdicts(known: MemoryRows, told: MemoryTold) -> dict[str, float]:
    """Return failures found and runs said to fit by the product's rule and by others."""
    failed = known.tells_failures & known.is_out_of_memory
    ran = known.tells_failures & ~known.is_out_of_memory
    figures = {"failures": float(failed.sum()), "runs that ran": float(ran.sum())}
    for rule, refused in _rules(known, told).items():
        figures[f"{rule}: failures found"] = float((refused & failed).sum())
        figures[f"{rule}: failures found, share"] = round(float(refused[failed].mean()), 4)
        figures[f"{rule}: said to fit of what ran"] = round(float(1 - refused[ran].mean()), 4)
    return figures


def _rules(known: MemoryRows, told: MemoryTold) -> Mapping[str, Bools]:
    """Return which rows each rule refuses."""
    card, every = known.capacity_bytes, np.ones(len(known.rows), bool)
    reserved = told.needed + kept_free_bytes(card, every) > card
    sure = {
        one: told.needed + NormalDist().inv_cdf(one) * told.needed_sd > card
        for one in sorted({*SURE, RENTED})
    }
    return (
        {"the product's rule": reserved, "for what is rented": reserved | sure[RENTED]}
        | {f"fits with {one:.0%}": refused for one, refused in sure.items()}
        | {f"at {share:.0%}": told.needed > share * card for share in SHARES}
    )


# Bytes of single operations by closed form: (kernel, provider, mode) -> of the sizes.
#
# t tokens, h width, f inner width, v vocabulary; e bytes an element (2, bf16).
_Form = Callable[[Mapping[str, float]], float]


def _loss(copies: float) -> _Form:
    return lambda s: copies * 4 * s["B"] * s["T"] * s["V"]


def _gated(inner: float, outer: float, weights: float) -> _Form:
    """Return a gated block's: so many tensors of its inner and outer width, and its matrices."""

    def bytes_of(s: Mapping[str, float]) -> float:
        tokens, h, f = (
            s.get("B", s.get("bsz", 1.0)) * s["T"],
            s["hidden_size"],
            s["intermediate_size"],
        )
        return 2.0 * (tokens * (inner * f + outer * h) + weights * 3 * h * f)

    return bytes_of


# PyTorch's cross entropy holds its input, the log-softmax, and the gradients of both, beside the
# input's gradient of the call before; Liger's writes the gradient over the input. A gated block
# keeps gate, its activation, the other product and both together (fused: without the activation)
# beside its input and output, and on the way back the gradients of three of them.
_FORMS: Final[Mapping[tuple[str, str, str], _Form]] = {
    ("cross_entropy", "huggingface", "full"): _loss(5),
    ("cross_entropy", "liger", "full"): _loss(1),
    ("geglu", "huggingface", "forward"): _gated(4, 2, 1),
    ("geglu", "liger", "forward"): _gated(3, 2, 1),
    ("geglu", "huggingface", "full"): _gated(7, 4, 2),
    ("swiglu", "huggingface", "full"): _gated(7, 4, 2),
    ("tiled_swiglu", "huggingface", "forward"): _gated(4, 2, 1),
    ("tiled_geglu", "huggingface", "forward"): _gated(4, 2, 1),
    ("tiled_swiglu", "liger", "forward"): _gated(3, 2, 1),
    ("tiled_geglu", "liger", "forward"): _gated(3, 2, 1),
    # fp32: input, output, both gradients, and the gradient of the call before
    ("layer_norm", "huggingface", "full"): lambda s: 5 * 4 * s["M"] * s["N"],
    # bf16: the fp32 copies of its input, of what is normed and of their gradients
    ("rms_norm", "huggingface", "full"): lambda s: 20 * 2 * s["M"] * s["H"],
}  # fmt: skip


def kernel_ratios(frame: Any) -> dict[str, float]:
    """Return the median of bytes by closed form over the peak that PyTorch counted, by kernel."""
    found: dict[str, list[float]] = {}
    for row in frame.itertuples():
        form = _FORMS.get((row.kernel, row.provider, row.mode))
        if form is not None:
            sizes = {**json.loads(row.config), row.x_name: float(row.x_value)}
            name = f"kernel {row.kernel}, {row.provider}, {row.mode}: told over read"
            found.setdefault(name, []).append(form(sizes) / (row.peak_mib * MIB))
    return {name: round(float(np.median(ratios)), 4) for name, ratios in found.items()}


def _blind(rows: Questions, _data: Path) -> Blinded:
    """Score what is asked where nothing is known of the framework's buffers."""
    known: MemoryRows = rows.facts.known
    bare = replace(known, rows=known.rows.without_framework_buffers())
    return Blinded(
        answers=Answers(value=told_by_others(bare).value),
        changed=("nothing of a framework's buffers is known",),
        still_seen=(_FORM_SEEN,),
    )


_FORM_SEEN: Final = "the form of the memory model, and the priors of contexts and slack"
PROTOCOL: Final = Protocol(
    name="memory",
    description="memory of transformer runs as it was read, on held-out sources; what runs out",
    senses={
        "*MAPE": "lower",
        "the product's rule: failures found*": "more",
        "the product's rule: said to fit*": "higher",
        "for what is rented: said to fit*": "higher",
        "*failures found*": "neutral",
        "*said to fit*": "neutral",
        "*half-width*": "lower",
        "*coverage": "neutral",
        "failures": "more",
        "runs that ran": "more",
        "kernel *": "neutral",
    },
    rows=read_rows,
    answer=_answers,
    puts_in="of published layouts: the framework's kernels, overlaps and buffers",
    seen=(_FORM_SEEN, "what stacks keep besides: read off these rows and their sources"),
    baselines={
        "Megatron's formula": lambda rows, _: baselines.megatron_bytes(rows.facts.known.rows),
        "a calculator of five terms": lambda rows, _: baselines.five_terms(rows.facts.known.rows),
        "the card's own size": lambda rows, _: rows.facts.known.capacity_bytes,
        "SimuMax, on its own machine": lambda rows, _: rows.facts.simumax_bytes,
    },
    blind=_blind,
)
