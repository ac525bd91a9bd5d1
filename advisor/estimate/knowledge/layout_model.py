"""The fitted layout model: its constants, and how far to trust them.

``trained_models/layout_model/parameters.json`` holds the constants fitted on every source table
(``parameters``), the constants fitted without each table in turn (``folds``: what that table is
scored with), and the left-out errors of each table (``errors``: what intervals are made of).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from advisor import data
from advisor.answer import fitted
from advisor.catalogue import Accelerator
from advisor.errors import CatalogueError
from advisor.planners.core import (
    FUSIONS,
    GENERATIONS,
    LOGIT_SCALES,
    LOSSES,
    PRECISION_BYTES,
    Device,
    Floats,
    LayoutParameters,
    Precision,
    Software,
    Stack,
    TrainingSetup,
    Transformer,
    UnitTimes,
    Work,
    transformer_parameters,
)
from advisor.planners.memory import model_state
from advisor.planners.step import KERNELS, StepColumns, adapter_work, runs_as

SCHEMA_VERSION: Final = 2
# Student's quantile of one degree of freedom is of no use: 6.3 deviations.
_LEAST_FREEDOM: Final = 2
# With fewer left-out tables of a generation than this, those of other generations are taken too.
_ENOUGH_TABLES: Final = 3
# Of a table's squared errors no more than the rest is put down to its distance from the others.
_LEAST_OWN: Final = 0.25


# How a user asks: the training stack is named, or it is not.
# How much of its software, and whether the layout, a question says.
Asked = Literal[
    "told the stack", "plain", "told the stack, layout open", "plain, layout open",
    "told the stack, mixture", "plain, mixture",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErrors:
    """Absolute log errors of one left-out table on one generation of GPUs, sorted."""

    table: str
    generation: str  # one of ``planners.core.arrays.GENERATIONS``
    log_errors: tuple[float, ...]
    # what its runs were: GPUs (``chip_of``), indices into ``PRECISIONS``, stacks, the narrowest
    # and the widest model, the most devices, and whether some were mixtures of experts
    chips: tuple[str, ...] = ()
    precisions: tuple[int, ...] = ()
    stacks: tuple[str, ...] = ()
    widths: tuple[float, float] = (0.0, 0.0)
    devices: int = 0
    has_experts: bool = False
    # the deviation of ln(step) that its distance from the other tables explains
    outside_log_sd: float = 0.0


# In what a question leaves the box of what was fitted.
Outside = Literal["wide", "narrow", "devices", "chip", "precision", "stack", "experts"]


def chip_of(name: str) -> str:
    """Return a GPU's name without its memory.

    >>> chip_of("A100-SXM4-40GB"), chip_of("RTX-4090")
    ('A100-SXM4', 'RTX-4090')
    """
    return re.sub(r"-\d+GB$", "", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutModel:
    """Constants and left-out errors."""

    version: str
    parameters: LayoutParameters  # fitted on all tables
    folds: dict[str, LayoutParameters]  # fitted without the named table
    # of rows of which all is told that their table knows
    errors: tuple[TableErrors, ...]
    # the same as users ask: with the stack's name, and without
    asked: Mapping[Asked, tuple[TableErrors, ...]] = field(default_factory=dict)
    # deviation of ln(step) by how a question leaves what was fitted: for every e-fold of the width
    # and doubling of the devices, and at once for the others (``lab.fit.box``)
    outside_log_sd: Mapping[Outside, float] = field(default_factory=dict)

    def outside(
        self, generation: int, *, chip: str, precision: int, stack: str | None, hidden: float,
        devices: int, has_experts: bool = False,
    ) -> dict[Outside, float]:  # fmt: skip
        """Return in what a question leaves the box, and the deviation that each adds.

        The box is what was measured on the generation. ``stack``: None where nobody named it.
        """
        known = [e for e in self.errors if e.generation == GENERATIONS[generation] and e.devices]
        if not known:
            return {}
        least, most = min(e.widths[0] for e in known), max(e.widths[1] for e in known)
        distance: dict[Outside, float] = {
            "wide": math.log(hidden / most),
            "narrow": math.log(least / hidden),
            "devices": math.log2(devices / max(e.devices for e in known)),
            "chip": not any(chip in e.chips for e in known),
            "precision": not any(precision in e.precisions for e in known),
            "stack": stack is not None and not any(stack in e.stacks for e in known),
            "experts": has_experts and not any(e.has_experts for e in known),
        }
        by = ((name, d, self.outside_log_sd.get(name, 0.0)) for name, d in distance.items())
        return {name: d * each for name, d, each in by if d > 0 and each > 0}

    def left_out(self, fold: str, table: str) -> LayoutModel:
        """Return the model that never saw a table: constants of a fold, errors of the others."""
        return replace(
            self,
            parameters=self.without(fold),
            errors=tuple(e for e in self.errors if e.table != table),
            asked={
                how: tuple(e for e in errors if e.table != table)
                for how, errors in self.asked.items()
            },
        )

    def without(self, table: str) -> LayoutParameters:
        """Return constants that never saw a table: its fold, or all where it is unknown."""
        return self.folds.get(table, self.parameters)

    def log_spread(self) -> Floats:
        """Return how well the tables determine the constants, as deviations of their logarithms.

        The jackknife over whole tables: of n fits, each without one table, (n - 1)/n times the sum
        of squared deviations (B. Efron, C. Stein, "The Jackknife Estimate of Variance," Annals of
        Statistics 9(3), 1981). In the order of ``planners.layouts.own_runs.NAMES``.
        """
        from advisor.planners.layouts import logarithms

        tables = {e.table for e in self.errors}
        fits = np.array([logarithms(p) for name, p in self.folds.items() if name in tables])
        n = len(fits)
        return np.asarray(np.sqrt((n - 1) / n * np.sum((fits - fits.mean(axis=0)) ** 2, axis=0)))

    def log_half_width(
        self, generation: int, coverage: float = 0.9, *, without: str | None = None,
        asked: Asked | None = None,
    ) -> float:  # fmt: skip
        """Return the half-width of an interval as a log factor.

        A new source's error is a draw among sources, of which few were seen: Student's quantile
        with as many degrees of freedom as left-out tables but one, times the root of their mean
        squared log errors, every table weighing the same. Where fewer than three tables of the
        generation are known, those of all generations are taken, but their mean square is no less
        than that of the generation's own: one table that errs much says more than many of others;
        and where it is one or none, all the others together count as one table more: how sources
        differ on a new generation is not known from old ones.

        ``generation``: index into ``planners.core.arrays.GENERATIONS``; ``without``: a table
        whose errors are not looked at; ``asked``: how much of its software and layout the question
        says; None for all that a table knows.
        """
        errors = self.errors if asked is None else self.asked.get(asked, self.errors)
        others = [e for e in errors if e.table != without]
        of_all = _mean_squares(others)
        own = _mean_squares(e for e in others if e.generation == GENERATIONS[generation])
        # What the software adds that nobody named is the same on every generation; so is what
        # models differ by that send tokens to experts.
        how = asked if asked is not None and asked in self.asked else ""
        is_of_software = how.startswith("plain") or how.endswith("mixture")
        taken = own if len(own) >= _ENOUGH_TABLES and not is_of_software else of_all
        mean, tables = float(np.mean(taken)), len(taken)
        if taken is of_all and not is_of_software:
            mean = max(mean, float(np.mean(own))) if own else mean
            tables = tables if len(own) > 1 else 2
        reach = student_quantile((1 + coverage) / 2, max(tables - 1, _LEAST_FREEDOM))
        return reach * math.sqrt(mean * (1 + 1 / tables))


def _mean_squares(errors: Iterable[TableErrors]) -> list[float]:
    """Return the mean squared log error of each table, without what its distance explains."""
    squares: dict[str, list[float]] = {}
    for e in errors:
        square = np.square(e.log_errors)
        # What its distance explains is added where a question is as far away, and not here.
        near = max(1.0 - e.outside_log_sd**2 / max(float(np.mean(square)), 1e-12), _LEAST_OWN)
        squares.setdefault(e.table, []).extend((near * square).tolist())
    return [float(np.mean(square)) for square in squares.values()]


def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's distribution, by Fisher and Cornish's expansion.

    Within 2 % of the exact value from two degrees of freedom on, for probabilities up to 0.95
    (R. Fisher, E. Cornish, "The Percentile Points of Distributions Having Known Cumulants,"
    Technometrics 2(2), 1960).

    >>> round(student_quantile(0.95, 8), 2), round(student_quantile(0.95, 10_000), 3)
    (1.86, 1.645)
    """
    z, n = NormalDist().inv_cdf(probability), float(max(freedom, 1))
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def path() -> Path:
    """Return where the packaged model lies."""
    return data.root("trained_models") / "layout_model" / "parameters.json"


@cache
def load(file: Path | None = None) -> LayoutModel:
    """Read the packaged model, or another of the same form."""
    return fitted(LayoutModel, file or path(), train="layout-model", version=SCHEMA_VERSION)


# Precision of the products -> index into ``planners.core.arrays.PRECISIONS``.
PRECISION_CODES: Final[dict[str, int]] = {"bf16": 0, "fp16": 0, "fp8": 1, "fp4": 2, "tf32": 3}
_FITTED_ARCHITECTURES: Final = frozenset(
    {"Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Blackwell Ultra", "CDNA3"}
)
_TUNED, _FLASH, _UNFUSED = 3, 2, 0
# What Transformer Engine keeps of a product's input: two numbers and a scale of 16 in 9 bytes.
_CAST_BYTES: Final = {"fp8": 1.0, "fp4": 9 / 16}
# Seconds of a forward pass among those of both, for what starts kernels (one and two passes).
_FORWARD_LAUNCHES: Final = 1 / 3


def shapes_law(
    device: Device,
    work: Work,
    accelerators: Mapping[str, Accelerator],
    by_operators: Collection[str] = (),
) -> tuple[Accelerator, int] | None:
    """Return what the law of the shapes needs of a device, or None where it does not hold.

    One of two laws times a transformer's layers on a device, always the same one for the same:

    - The law of the shapes (``planners.step.transformer``): products, attention and elementwise
      traffic counted from the model's dimensions, constants fitted on published runs of Megatron,
      DeepSpeed, FSDP and the like. It holds where those were run: NVIDIA's GPUs from Volta on
      and AMD's of CDNA 3 whose rate of large products was measured, in 16 bits or less (or TF32).
    - The law of the operators (``planners.step.device``): a roofline over every operator of the
      step, with what measured steps say of its errors (``planners.step.calibrate``). It holds
      everywhere else: processors, other makers' accelerators, fp32, and cards of known families
      whose rate nobody measured, on which the shapes err by a quarter and the operators by a tenth
      (``advisor validate described``).

    On published layouts left out by table, all on measured cards, the first errs less than half as
    much (``lab/notes/planners.md`` says how much, ``advisor validate layouts`` scores both).

    ``work``: whose precision is asked for; ``by_operators``: chip families that the law of the
    operators was fitted on: it answers for their cards whose rate nobody measured.

    Returns
    -------
    (Part, int) or None
        The accelerator (of a shared card: that share of it), and the code of its precision.
    """
    name, _, shared = device.name.partition("/")
    row = accelerators.get(name)
    if row is None or row.architecture not in _FITTED_ARCHITECTURES:
        return None
    code = PRECISION_CODES.get(runs_as(device, work.precision))
    if code is None:
        return None
    try:
        known = row.laid_out()
    except CatalogueError:
        return None
    if known.is_inferred and row.architecture in by_operators:
        return None
    if not shared:
        limit = device.tdp_w
        if limit is not None and limit < ((row.device and row.device.tdp_w) or 0.0):
            known = row.limited(limit)
        return known, code
    share = 1.0 / float(shared)
    return replace(known, card_share=share), code


def operator_table(work: Work, columns: StepColumns, log_factor: float = 0.0) -> UnitTimes:
    """Return a layer's share of a model's times by the law of the operators.

    ``columns``: on one device, at the micro-batches 1, 2, 4, ; ``log_factor``: what measured steps
    say of the device (``planners.step.calibrate``).
    """
    assert work.transformer is not None
    share = float(np.exp(log_factor)) / work.transformer.layers
    backward = columns.backward_s[0] * share
    forward = columns.micro_batch_s[0] * share - backward
    launch = float(columns.launch_s[0, -1]) * share
    return UnitTimes(
        micro_batches=np.exp2(np.arange(columns.micro_batch_s.shape[1])),
        forward_s=forward[:, None],
        backward_s=backward[:, None],
        optimizer_s=float(columns.optimizer_s[0]) * share,
        log_sd=float(columns.log_sd[0]),
        launch_s=(launch * _FORWARD_LAUNCHES, launch * (1 - _FORWARD_LAUNCHES)),
    )


def trained_share(work: Work) -> float:
    """Return the share of the model's own weights that have gradients and optimizer state."""
    return 0.0 if work.setup.has_adapters else 1.0 - work.setup.frozen_fraction


def passed_share(work: Work) -> float:
    """Return the share of the layers with a backward pass; frozen ones lie at the input."""
    assert work.transformer is not None
    return 1.0 - work.setup.frozen_layers(work.transformer) / work.transformer.layers


def usual_stack(work: Work, *, is_split: bool, moves_state: bool = False) -> Stack | None:
    """Return what a described transformer is commonly trained with, where nobody says.

    None is a loop of one's own in PyTorch: data parallel in fp32 or bf16. Fine-tuning
    (adapters, or weights without an fp32 copy) is TRL's SFTTrainer's, whose loss is chunked as
    today's fine-tuning tools have it; of adapters that are split, or in 8 bits, NeMo's, as nothing
    else does either. Products in 8 bits and fewer are those of Transformer Engine, which NeMo's
    recipes turn on. A model that its user splits (``is_split``: a degree of tensor, pipeline,
    context or expert parallelism is asked for) runs in Megatron: by NeMo's recipes in bf16; fp16
    and its loss scaling are of the releases before Megatron Core, and so are models of GPT's kind
    that nobody splits (all published pre-training in fp16: before flash attention and gated
    blocks). A ZeRO stage with offload (``moves_state``) is asked of DeepSpeed.
    """
    setup, is_narrow = work.setup, PRECISION_BYTES[work.precision] == 1
    if setup.has_adapters and setup.base_bits == 16 and (is_split or is_narrow):
        return "nemo"
    if setup.is_tuned_finely:
        return "trl" if setup.kernels == "eager" else None
    if is_narrow:
        return "nemo"
    if is_split:
        return "nemo" if work.precision == "bf16" else "megatron-lm"
    if moves_state:
        return "deepspeed"
    model = work.transformer
    is_gpt = model is not None and model.is_causal and not model.is_gated
    is_old = work.precision == "fp16" and is_gpt and setup.kernels != "compiled"
    return "megatron-lm" if is_old else None


def _spared_input_bytes(work: Work, model: Transformer) -> float:
    """Return what a layer need not keep of a token's inputs of products in 16 bits [bytes/token].

    Beside adapters those of frozen products, less what adapters keep beside them: each a copy of
    its input where it is cast for it. The attention's own are there for its backward pass, and
    bitsandbytes keeps the input of every product (0.41, ``MatMul4Bit``). Transformer Engine keeps
    what it has cast, beside attention's output, which attention reads again.
    """
    setup, inner = work.setup, (model.ffn or 4 * model.hidden) * model.experts_per_token
    if setup.has_adapters:
        return _beside_adapters(setup, model, inner)
    kept = _CAST_BYTES.get(work.precision)
    if kept is None or setup.kernels != "fused":
        return 0.0
    return (2.0 - kept) * (2 * model.hidden + inner) - kept * model.hidden


def _beside_adapters(setup: TrainingSetup, model: Transformer, inner: int) -> float:
    if setup.base_bits < 16:
        return 0.0
    copied = 0.0 if (facts := setup.facts) is None else facts.adapter_input_bytes
    found = 0.0
    for names, width, counted in (
        (("query", "key", "value"), model.hidden, 2.0),
        (("projection",), model.hidden, 0.0),
        (("up",) * (1 + model.is_gated), model.hidden, 2.0),
        (("down",), inner, 2.0),
    ):
        adapted = sum(map(setup.adapts, names))
        found += width * (counted - (copied * adapted if copied else counted * (adapted > 0)))
    return found


def _adapter_bytes(setup: TrainingSetup, precision: Precision) -> float:
    """Return weight, gradient and optimizer state of adapters [bytes/parameter]."""
    if (facts := setup.facts) is not None and setup.base_bits in facts.fp32_adapters:
        setup, precision = replace(setup, weights="fp32", gradients="fp32"), "fp32"
    kept = (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes)
    return float(model_state(*(of(precision) for of in kept)).device_bytes)


def software_of(work: Work) -> Software:
    """Return what the training software does as columns of the layout model."""
    setup = work.setup
    precision = work.precision
    # Kernels fused by hand are Megatron Core's, with Transformer Engine's attention: today's
    # overlap sends and tensor parallel products. PyTorch's checkpoints end with the last tensor
    # needed.
    is_megatron = setup.kernels == "fused"
    # The formula counts elements of two bytes.
    element = max(min(PRECISION_BYTES[precision], 4), 2)
    assert work.transformer is not None
    weight, adapters = setup.mean_weight_bytes(work.transformer, precision), 0.0
    if setup.has_adapters:
        # Their gradients and state are small, and shared out like the weights they stand beside.
        share, mean = setup.trainable_fraction(work.transformer), setup.weight_bytes(precision)
        adapters = share * _adapter_bytes(setup, precision)
        weight += adapters - share * mean
    kernel = KERNELS[setup.base_bits]
    software = Software(
        **adapter_work(setup, work.transformer),
        decoded_flop=kernel.decoded_flop,
        dequantised_bytes=kernel.backward_bytes,
        dequantised_forward_bytes=kernel.forward_bytes,
        fusion=FUSIONS.index(setup.kernels),
        is_trainer=int(setup.kernels == "eager" and setup.is_tuned_finely),
        attention=_UNFUSED if setup.attention == "unfused" else _TUNED if is_megatron else _FLASH,
        overlaps_dp=int(setup.overlaps),
        overlaps_tp=int(
            is_megatron and setup.overlaps
            if setup.overlaps_tensor is None
            else setup.overlaps_tensor
        ),
        overlaps_pp=int(is_megatron and setup.overlaps),
        stops_early=int(not is_megatron),
        gradient_bytes=setup.gradient_bytes(precision),
        weight_bytes=weight,
        adapter_bytes=adapters,
        spared_input_bytes=_spared_input_bytes(work, work.transformer),
        master_bytes=setup.master_bytes(precision),
        optimizer_state_bytes=setup.optimizer_bytes(precision, work.transformer),
        pages_optimizer=int(setup.pages_optimizer),
        # The Trainer's, and what a loop of one's own has, is DeepSpeed's.
        offload_takes_gradients=int(setup.facts is None or setup.facts.framework == "trainer"),
        update_flop=setup.update_flop(work.transformer),
        logit_scale=LOGIT_SCALES[FUSIONS.index(setup.kernels)],
        activation_scale=element / 2,
        # Of PyTorch's operators every second product (``create_selective_checkpoint_contexts``).
        selective_gemm=0.0 if is_megatron else 0.5,
    )
    if (facts := setup.facts) is None:
        is_open = setup.loss is None and setup.computed_loss == "eager"
        return software if is_open else replace(software, **LOSSES[setup.computed_loss])
    said = dict(facts.software)
    if setup.loss not in (None, facts.loss):
        said = {name: value for name, value in said.items() if not name.startswith("logit_")}
        said |= LOSSES[setup.computed_loss]
    if setup.attention == "unfused":
        said.pop("attention", None)
    if setup.overlaps_tensor is not None:
        said.pop("overlaps_tp", None)
    if facts.holds_frozen and setup.has_adapters:
        said["gathers_whole"] = 1
    found = replace(software, **said)
    if not (facts.upcasts_base and setup.base_bits < 16):
        return found
    # Embedding, head and logits in fp32, two bytes more than in 16 bits.
    model = work.transformer
    tables = (1 + (not model.has_tied_embeddings)) * model.vocabulary * model.hidden
    return replace(
        found, residual_bytes=4.0, logit_scale=np.asarray(found.logit_scale, float) + 4 / 8,
        weight_bytes=weight + 2.0 * tables / transformer_parameters(model),
    )  # fmt: skip
