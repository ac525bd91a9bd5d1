"""Fit what a whole run adds to its steps, on published training runs, one family left out.

``ln(published / estimated hours)`` of every run is explained by ``planners.goodput``:
its size where the published hours are of a run as it was, and the age of its software. The fit
minimises, over constants of 0 or more,

    sum over runs  n_f^-1/2 rho((growth x + per_year y - r) / 0.15)
    + sum over constants  (constant / 0.3)^2 / 2

with rho the soft absolute value and n_f the runs of a family, so that neither five sizes of one
model nor one contested figure decides. The rate that others keep up on the chip, to which the
estimate is drawn, is of the same families. The spread is the one at which 90 % intervals, the
step's own error included, hold 90 % of the whole runs of families that were left out (every family
weighing the root of its runs). The form is the one that errs least on families left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from advisor.answer import to_record
from advisor.catalogue import Accelerator, Catalogue
from advisor.errors import AdvisorError, ModelError
from advisor.estimate.completion import SCHEMA_VERSION, on_demand
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import STATUSES
from advisor.jobs.describe import described_job, model_work
from advisor.jobs.job import Job
from advisor.jobs.model_facts import restacked
from advisor.lab.data.campaigns import Campaign, packaged_path, read_campaigns, without_repetitions
from advisor.lab.fit.verbs import FittedFolder, rounded, widening
from advisor.machines.cluster import ClusterGroup, parse_cluster
from advisor.machines.fleet import LATENCY_S, own_fleet
from advisor.planners.core.errors import HOUR_S, PlanningError
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import (
    DEFAULT_SETUP,
    Attention,
    Precision,
    Stack,
    TrainingSetup,
    Transformer,
    read_stack,
    transformer_parameters,
)
from advisor.planners.goodput import STEPS_ALONE, CampaignLaw, efolds
from advisor.planners.step import model_flop_per_token
from advisor.quantities import QUANTILES
from advisor.records import reads

# Published training runs as questions to the estimate.
#
# A run is described by its columns and put to the machines that it had. What a source leaves open
# is filled in by rule, and counted (``Assumption``):
#
# - Without a number of accelerators: as many as end within a month at 40 % of the datasheet rate,
#   a power of two of machines (the published months of the LLaMA runs; no hours are read).
# - Without a batch: GPT-3's table 2.1 by size; LLaMA's 4 million tokens from 6 billion parameters.
# - The batch is the nearest that the accelerators share evenly, within a tenth: no recipe trains
#   on 479 sequences.
# - Sequences longer than 8,192 are the model's longest context; most tokens were trained at 8,192.
# - Without a network: none is typed, so that the product assumes one.
# - Software of 2022 and before had no flash attention (arXiv 2205.14135, May 2022).


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
_FUSED_BY_HAND: Final = ("metaseq", "fairseq", "xformers", "llm.c")
# Part of a framework's name -> the stack that its user would name; the first that fits.
_STACKS: Final[tuple[tuple[str, Stack], ...]] = (
    ("neox", "megatron-deepspeed"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("nemo", "nemo"),
    ("megatron", "megatron-lm"),
    ("deepspeed", "deepspeed"),
    ("composer", "llm-foundry"),
    ("lit-gpt", "fsdp"),
    ("litgpt", "fsdp"),
)
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
    batch = _batch(campaign, transformer, devices, assumed)
    per_node = math.gcd(devices, _PER_NODE)
    text = f"{devices // per_node}x{per_node}x{accelerator.name}"
    if network is not None:  # a user who does not know it types none
        text += f"@{network:g}Gbps"
    return CampaignQuestion(
        campaign=campaign,
        transformer=transformer,
        machines=parse_cluster(text, catalogue)[0],
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
    peak = accelerator.peak_flop_per_s("bf16") or accelerator.peak_flop_per_s("fp16")
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
    """Return what its user would type: the stack where it has a name, else the kernels."""
    framework = c.framework.lower()
    attention = "flash" if c.year >= _FLASH_ATTENTION_YEAR else "unfused"
    is_fused = any(name in framework for name in _FUSED_BY_HAND)
    stack = next((stack for name, stack in _STACKS if name in framework), None)
    if stack is not None and not is_fused:
        return restacked(
            DEFAULT_SETUP, {"stack": _released(stack, c.year), "attention": attention}
        )
    return TrainingSetup(
        kernels="fused" if is_fused else "compiled", attention=cast(Attention, attention)
    )


def _released(stack: Stack, year: int) -> str:
    """Return a stack in its release of the January before publication, where one is known."""
    dated = f"{stack}@{year}-01"
    try:
        read_stack(dated)
    except PlanningError:
        return stack
    return dated


def _precision(c: Campaign) -> Precision:
    """Return what the products ran in as stated, 16 bits where nothing is."""
    text = c.precision.lower()
    known: tuple[Precision, ...] = ("fp8", "tf32", "fp16", "fp32")
    return next((name for name in known if text.startswith(name)), "bf16")


# Published training runs and what the estimate says of them, goodput included.


COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignAnswer:
    """A published run and what the estimate says of it in its best layout.

    All before the whole-run term.
    """

    question: CampaignQuestion
    steps_h: float  # the steps alone [h]
    # with checkpoints and hardware failures where the published hours are of a run as it was; the
    # steps alone elsewhere [h]
    hours: float
    log_sd: float  # of the logarithm of the step time
    layout: Layout

    @property
    def device_h(self) -> float:
        """Hours of all devices together, goodput included [h]."""
        return self.hours * self.question.machines.devices

    @property
    def steps_device_h(self) -> float:
        """Hours of all devices together in steps [h]."""
        return self.steps_h * self.question.machines.devices

    @property
    def published_rate_device_h(self) -> float | None:
        """Hours of all devices at the published rate of the steps; None without one [h]."""
        c = self.question.campaign
        if c.tokens and c.tokens_per_s_per_device:
            return c.tokens / c.tokens_per_s_per_device / HOUR_S
        return self.ideal_device_h / c.mfu_fraction if c.mfu_fraction else None

    @property
    def ideal_device_h(self) -> float:
        """Hours of all devices for 6 N D at the datasheet's dense 16-bit rate [h]."""
        c = self.question.campaign
        size = c.parameters or transformer_parameters(self.question.transformer)
        return 6 * size * (c.tokens or 0.0) / self._peak_flop_per_s / HOUR_S

    @property
    def needed_device_h(self) -> float:
        """The same for the operations that the product counts, attention's too [h]."""
        job = self.question.job
        assert job.work is not None
        of_token = model_flop_per_token(self.question.transformer, job.work.setup)
        tokens = self.question.campaign.tokens or 0.0
        return of_token * tokens / self._peak_flop_per_s / HOUR_S

    @property
    def _peak_flop_per_s(self) -> float:
        part = self.question.machines.part
        stated = part.peak_flop_per_s("bf16") or part.peak_flop_per_s("fp16")
        return stated or part.flop_per_s


def answers(
    campaigns: Sequence[Campaign], predictor: Predictor
) -> tuple[list[CampaignAnswer], dict[str, int]]:
    found, left_out = [], {}
    kept = without_repetitions(campaigns)
    if len(kept) < len(campaigns):
        left_out["stated once more"] = len(campaigns) - len(kept)
    for campaign in kept:
        try:
            found.append(answer(ask(campaign, predictor.catalogue), predictor))
        except UnusableError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
    return found, left_out


def answer(question: CampaignQuestion, predictor: Predictor) -> CampaignAnswer:
    """Ask the estimate: the only place that does.

    Raises UnusableError if it has no answer; the message is its status.
    """
    job, group = question.job, question.machines
    fleet, row = own_fleet(group, predictor.fleet, per_node=group.node.devices)
    fleet = replace(
        fleet,
        rdma_share=np.ones_like(fleet.rdma_share),
        network_latency_s=np.full_like(fleet.network_latency_s, LATENCY_S["rdma"]),
    )
    columns = predictor.step_columns(job, np.array([row]), np.array([group.count]), fleet=fleet)
    if columns.status[0]:
        raise UnusableError(STATUSES[int(columns.status[0])].replace("_", " "))
    steps_h = float(columns.step_s[0]) * job.total_steps / HOUR_S
    whole = on_demand(job, columns, COVERAGE, law=STEPS_ALONE).finish_h[0, 1]
    return CampaignAnswer(
        question=question,
        steps_h=steps_h,
        hours=float(whole) if question.campaign.is_whole_run else steps_h,
        log_sd=float(columns.log_sd[0]),
        layout=columns.layout(0),
    )


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Year of the newest software among the measured layouts (NeMo 24, torchtitan).
SOFTWARE_YEAR: Final = 2024
# Below it errors count squared, above it absolutely: the median error of the step on new tables.
_NOISE: Final = 0.15
# Of each constant around 0: a factor of 1.35 an e-fold or a year would be news.
_PRIOR_SD: Final = 0.3
_ITERATIONS: Final = 60
# Below a machine-hour every run counts as one: a spread cannot be read off a run without size.
_LEAST_EFOLDS: Final = 0.04
# Fewer whole runs with a published rate of steps than this show no spread.
_FEWEST_RATES: Final = 3
# Share of the chip's history: errors of families left out are flat between a fifth and a third.
# Chosen anew without each family it scatters from .16 to .42, and costs more than it gains.
HISTORY: Final = 0.25
# How many families' weight the mean of all chips has in each one's.
_LIKE_ALL: Final = 2.0
# Which of (size, age of the software) a form has.
FORMS: Final = {
    "nothing": (False, False),
    "size": (True, False),
    "software": (False, True),
    "size and software": (True, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignColumns:
    """Published runs and what the estimate says of them, shape (n,)."""

    family: NDArray[np.str_]
    # published_h, estimated_h, steps_h: device-hours; estimated without the whole-run term, and in
    # steps alone [h]
    published_h: Floats
    estimated_h: Floats
    steps_h: Floats
    software_years: Floats  # by which the software is older than that of the measured layouts
    is_whole_run: Bools  # the published hours are of a run as it was
    step_log_sd: Floats
    rate_h: Floats  # device-hours at the published rate of the steps; nan without one [h]
    # of the chip, and device-hours of the steps at its 16-bit peak; nan where that is unknown [h]
    architecture: NDArray[np.str_]
    needed_h: Floats

    def __len__(self) -> int:
        return self.family.size

    def select(self, rows: Bools) -> CampaignColumns:
        return CampaignColumns(**{name: getattr(self, name)[rows] for name in self.__slots__})

    @property
    def weight(self) -> Floats:
        """Every family's root of its runs, shared by them."""
        _, place, count = np.unique(self.family, return_inverse=True, return_counts=True)
        return np.asarray(count[place] ** -0.5)

    @property
    def target(self) -> Floats:
        """Return ln(published / estimated hours)."""
        return np.log(self.published_h / self.estimated_h)

    def log_factor(self, law: CampaignLaw) -> Floats:
        """Return what a law adds to the logarithm of the estimated hours."""
        return np.where(
            self.is_whole_run,
            law.log_factor(self.steps_h, self.software_years, self.log_usual(law)),
            replace(law, growth=0.0).log_factor(
                self.steps_h, self.software_years, self.log_usual(law)
            ),
        )

    def log_sd(self, law: CampaignLaw) -> Floats:
        """Return the deviation of the hours' logarithm: the step's and the whole run's."""
        usual = self.log_usual(law)
        return law.log_sd(self.steps_h, step_log_sd=self.step_log_sd, log_usual=usual)

    def log_usual(self, law: CampaignLaw) -> Floats:
        """Return how much longer the steps take at the chip's usual rate, as a logarithm."""
        if not law.usual:
            return np.full(len(self), np.nan)
        of_chip = [law.usual.get(str(one), law.usual[""]) for one in self.architecture]
        return np.asarray(np.log(self.needed_h / self.steps_h) + np.array(of_chip))


def columns(found: Sequence[CampaignAnswer]) -> CampaignColumns:
    """Return answers as columns.

    Raises ModelError if there is none.
    """
    if not found:
        raise ModelError(
            "no published run can be put to the estimate",
            hint="a run needs a transformer's dimensions, its tokens and a known accelerator",
        )
    runs = [a.question.campaign for a in found]
    return CampaignColumns(
        family=np.array([c.family for c in runs]),
        published_h=np.array([c.device_h for c in runs]),
        estimated_h=np.array([a.device_h for a in found]),
        steps_h=np.array([a.steps_device_h for a in found]),
        software_years=np.array([max(SOFTWARE_YEAR - c.year, 0) for c in runs], float),
        is_whole_run=np.array([c.is_whole_run for c in runs]),
        step_log_sd=np.array([a.log_sd for a in found]),
        rate_h=np.array([a.published_rate_device_h or np.nan for a in found]),
        architecture=np.array([a.question.machines.part.architecture for a in found]),
        needed_h=np.array([a.needed_device_h for a in found]),
    )


def fit(rows: CampaignColumns) -> CampaignLaw:
    """Fit the law, form and spread chosen on the rows' own families left out."""
    errors = {form: left_out_errors(rows, form) for form in FORMS}
    form = min(errors, key=lambda f: mean_error(rows, errors[f]))
    law = _law(rows, form, HISTORY)
    spread = _spread(rows, left_out_errors(rows, form, HISTORY), law)
    return replace(law, sd=spread, sd_measured=min(_spread_of_measured(rows, law.growth), spread))


def left_out_errors(rows: CampaignColumns, form: str, history: float = 0.0) -> Floats:
    """Return ln(predicted / published) with each family's constants fitted on the others."""
    errors = np.zeros(len(rows))
    for family in np.unique(rows.family):
        own = rows.family == family
        law, left_out = _law(rows.select(~own), form, history), rows.select(own)
        errors[own] = left_out.log_factor(law) - left_out.target
    return errors


def _law(rows: CampaignColumns, form: str, history: float) -> CampaignLaw:
    """Return the law of a form and a share of history, its spread left open."""
    growth, per_year = _constants(rows, form)
    law = CampaignLaw(growth=growth, per_year=per_year, sd=0.0)
    return replace(law, history=history, usual=_usual(rows, law)) if history else law


def _usual(rows: CampaignColumns, law: CampaignLaw) -> dict[str, float]:
    """Return ln(hours of steps over those at the peak): the mean, and of each architecture.

    Of an architecture as if so many more runs of other families had given the mean.
    """
    found = np.log(rows.published_h / rows.needed_h) - rows.log_factor(law)
    known = np.isfinite(found)
    if not known.any():
        return {}
    weight, mean = rows.weight, float(np.average(found[known], weights=rows.weight[known]))
    usual = {"": mean}
    for one in np.unique(rows.architecture[known]).tolist():
        here = known & (rows.architecture == one)
        told, total = float(weight[here] @ found[here]), float(weight[here].sum())
        usual[one] = (_LIKE_ALL * mean + told) / (_LIKE_ALL + total)
    return usual


def mean_error(rows: CampaignColumns, errors: Floats) -> float:
    return float(np.average(np.abs(errors), weights=rows.weight))


def folds(rows: CampaignColumns) -> dict[str, CampaignLaw]:
    """Return the law without each family in turn."""
    return {str(f): fit(rows.select(rows.family != f)) for f in np.unique(rows.family)}


def _constants(rows: CampaignColumns, form: str) -> tuple[float, float]:
    """Return (growth, per_year): reweighted least squares, each step on constants >= 0."""
    from scipy.optimize import nnls

    has = np.flatnonzero(FORMS[form])
    size = np.where(rows.is_whole_run, efolds(rows.steps_h), 0.0)
    design = np.stack([size, rows.software_years], axis=1)[:, has]
    found, target = np.zeros(has.size), rows.target
    for _ in range(_ITERATIONS if has.size and len(rows) else 0):
        z = (design @ found - target) / _NOISE
        root = np.sqrt(rows.weight / np.sqrt(1 + z * z)) / _NOISE
        prior = np.eye(has.size) / _PRIOR_SD
        found, _ = nnls(
            np.concatenate([design * root[:, None], prior]),
            np.concatenate([target * root, np.zeros(has.size)]),
        )
    both = np.zeros(2)
    both[has] = found
    return float(both[0]), float(both[1])


def _spread(rows: CampaignColumns, errors: Floats, law: CampaignLaw) -> float:
    """Return the deviation from one e-fold on at which 90 % intervals hold 90 % of whole runs.

    Hours of steps alone scatter less, and are not what is told.
    """
    rows, errors = rows.select(rows.is_whole_run), errors[rows.is_whole_run]
    if len(rows) == 0:
        return 0.0
    beyond = np.maximum((errors / QUANTILES[COVERAGE]) ** 2 - rows.log_sd(law) ** 2, 0.0)
    wanted = beyond / np.clip(efolds(rows.steps_h), _LEAST_EFOLDS, 1.0)
    order = np.argsort(wanted)
    share = np.cumsum(rows.weight[order]) / rows.weight.sum()
    # One run more is asked than is known.
    place = min(int(np.searchsorted(share, COVERAGE * (1 + 1 / len(rows)))), len(rows) - 1)
    return float(np.sqrt(wanted[order][place]))


def beyond_rate(rows: CampaignColumns) -> tuple[Floats, Floats]:
    """Return sizes of whole runs with a published rate of steps, and ln(hours / at that rate)."""
    known = rows.is_whole_run & np.isfinite(rows.rate_h)
    beyond = np.log(rows.published_h[known] / rows.rate_h[known])
    return efolds(rows.rate_h[known]), beyond


def _spread_of_measured(rows: CampaignColumns, growth: float) -> float:
    """Return the deviation of whole runs beyond their own published rate, from one e-fold on.

    Few publish both: the root mean square, times Student's quantile over the normal one.
    """
    size, beyond = beyond_rate(rows)
    if size.size < _FEWEST_RATES:
        return np.inf
    left = (beyond - growth * size) ** 2 / np.minimum(size, 1.0)
    root_mean_square = np.sqrt(np.mean(left))
    return float(widening(size.size) * root_mean_square)


def metrics(rows: CampaignColumns) -> dict[str, Any]:
    """Return what the forms err on families left out: weighted mean of |ln(ours / published)|."""
    return {
        "runs": len(rows),
        "families": int(np.unique(rows.family).size),
        "left_out_mean_log_error": {
            form: round(mean_error(rows, left_out_errors(rows, form)), 4) for form in FORMS
        },
    }


def fitted(given: Path | None, day: str) -> FittedFolder:
    source = given or packaged_path()
    reads.note_file("campaigns/runs", source)
    found, left_out = answers(read_campaigns(source), Predictor())
    rows = columns(found)
    law, laws = fit(rows), dict(sorted(folds(rows).items()))
    written = {
        "schema_version": SCHEMA_VERSION,
        **rounded(
            {
                "version": day,
                "law": to_record(law),
                "folds": {name: to_record(one) for name, one in laws.items()},
            }
        ),
        "fitted_on": {"runs": len(rows), "left_out": left_out},
    }
    return FittedFolder(
        files={"parameters.json": json.dumps(written, indent=1) + "\n"},
        metrics=metrics(rows),
        told=f"{law}, {len(rows)} runs of {len(laws)} families",
    )
