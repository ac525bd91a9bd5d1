"""What is said of any job's model: its shapes, its training software and its step's units.

That a recorded one is a transformer (``recognised``), the training software that it has or would
have (``with_setup``, ``setup_words``), and its step in the units of people who train transformers
(``training_units``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from advisor.answer import TrainingUnits, Utilisation
from advisor.ask import SetupRequest
from advisor.collectors.format import Columns, rows_of
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.core import (
    DEFAULT_SETUP,
    HOUR_S,
    OPTIMIZERS,
    STACKS,
    Device,
    Stack,
    TrainingSetup,
    Work,
    read_stack,
    stack_facts,
)
from advisor.planners.step import (
    TransformerBlocks,
    model_flop_per_token,
    peak_flop_per_s,
    runs_as,
    transformer_blocks,
    transformer_work,
    update,
    work_units,
)
from advisor.quantities import percent_text

NO_LENGTH: Final = "no length was given: one step"
_NOTE: Final = "recognised as a transformer"


def recognised(job: Job, *, heads: int | None = None) -> Job:
    """Return a recorded job with a note of the transformer that its modules are.

    ``heads``: attention heads, where the user knows better than the recording.

    Raises UsageError if ``heads`` are given for a model that was not recognised, or do not divide
    its width.
    """
    work = job.work
    blocks = "it was not recorded" if work is None or not work.layers else (
        transformer_blocks(work, work_units(work), heads=heads or job.heads)
    )  # fmt: skip
    if work is None or not isinstance(blocks, TransformerBlocks):
        if heads is not None:
            raise UsageError(
                f"--heads: {job.name} is not a recorded transformer: {blocks}",
                hint="leave the heads out",
            )
        return job
    if heads is not None:
        if blocks.hidden % heads:
            raise UsageError(
                f"--heads {heads} do not divide the model's width of {blocks.hidden}",
                hint="give the number of heads in the model's configuration",
            )
        job = replace(job, heads=heads)
    known = (
        f"{job.heads} heads" + (" (given: --heads)" if heads else " as recorded")
        if job.heads is not None
        else f"heads of {blocks.hidden // blocks.widest_tp} columns assumed (--heads)"
    )
    note = f"{_NOTE} of {blocks.blocks} blocks, {blocks.hidden} columns wide, {known}"
    others = tuple(one for one in job.assumptions if not one.startswith(_NOTE))
    return replace(job, assumptions=(*others, note))


def recorded_heads(operators: Columns) -> int | None:
    """Return the heads of the recorded attention operators; None where none was seen whole.

    PyTorch's fused attention gets queries as (samples, heads, tokens, width), first of its
    operands.
    """
    seen: Counter[int] = Counter()
    for name, phase, shapes, count in rows_of(operators, "name", "phase", "shapes", "count"):
        sizes = shapes.split(",")[0].split("x")
        is_attention = "scaled_dot_product" in name and phase == "forward"
        if is_attention and len(sizes) == 4 and sizes[1].isdigit():
            seen[int(sizes[1])] += count
    return seen.most_common(1)[0][0] if seen else None


# What a recorded step can be asked about: the others change what it computes.
_OF_A_RECORDING: Final = frozenset({"kernels", "optimizer", "weights", "overlaps"})
_FLAGS: Final = {
    "adapter_rank": "--lora",
    "adapter_targets": "--lora-targets",
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
    work, setup = job.work, restacked(job.work.setup, given)
    if work.transformer is not None and job.measured is None:
        return replace(job, work=described_anew(work, setup=setup))
    for name in given.keys() - _OF_A_RECORDING:
        raise UsageError(
            f"{_flag(name)} changes what a recorded step computes",
            hint="record a run that trains so, or describe the model: --model config.json",
        )
    return replace(job, work=_restated(work, setup))


def restacked(setup: TrainingSetup, given: Mapping[str, Any]) -> TrainingSetup:
    """Return a setup with what is given, and the rest as a stack named there has it.

    Raises PlanningError if the stack is named in a release that is not known.
    """
    defaults: Mapping[str, Any] = {}
    name = {}
    if (typed := given.get("stack")) is not None:
        stack, release = read_stack(typed)
        defaults, name = stack_facts(stack, release).setup, {"stack": stack, "release": release}
    said = tuple(sorted({*setup.said, *given}))
    return replace(setup, **{**defaults, **given, **name, "said": said})


def as_commonly_run(work: Work, stack: Stack) -> Work:
    """Return a described transformer's work as a stack that nobody named would train it.

    What its user said otherwise stays.
    """
    defaults = {
        name: value
        for name, value in STACKS[stack].setup.items()
        if name not in work.setup.said
        and getattr(work.setup, name) == getattr(DEFAULT_SETUP, name)
    }
    setup = replace(work.setup, **defaults, stack=stack, is_stack_assumed=True)
    return described_anew(work, setup=setup)


def stack_notes(work: Work | None) -> tuple[str, ...]:
    """Return what is assumed of the software of a described transformer, in one line.

    ``work``: as it was asked (``estimate.commonly_run``).
    """
    if work is None or work.transformer is None or work.setup.stack is None:
        return ()
    if not work.setup.is_stack_assumed:
        return (f"software: {setup_words(work)}",)
    loss = work.setup.computed_loss
    said = f"as {work.setup.stack} runs it, with {'an' if loss == 'eager' else 'a'} {loss} loss"
    return (f"no stack was named: {said}; --stack names another",)


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
            operators=work.operators.keeping(~work.operators.is_update, updated),
        )
    if setup.weights != work.setup.weights:
        stored = setup.stored_bytes(work.precision) * work.parameters
        changed = replace(changed, parameter_bytes=stored)
    return changed


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name}")


_TARGETS: Final = {
    "all-linear": "all linear layers", "attention": "attention", "query-value": "query and value",
}  # fmt: skip


def setup_words(work: Work) -> str:
    """Return what the estimate takes the training software to do.

    Examples
    --------
    >>> from advisor.planners.step.describe import transformer_work
    >>> from advisor.planners.core.nouns import Transformer
    >>> gpt2 = Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)
    >>> setup_words(transformer_work(gpt2, micro_batch=8))
    'eager kernels, flash attention, AdamW, fp32 weights, fp32 gradients, eager loss'
    """
    setup = work.setup
    said = [
        f"{setup.kernels} kernels",
        f"{setup.attention} attention",
        OPTIMIZERS[setup.optimizer]["name"],
        f"{setup.weights} weights",
        f"{'bf16' if setup.weights == 'bf16' else setup.gradients} gradients",
    ]
    if not _has_attention(work):
        del said[1]
    if setup.loss or (work.transformer is not None and work.transformer.vocabulary):
        said.append(f"{setup.computed_loss} loss")
    if setup.has_adapters:
        base = {16: "16-bit base", 8: "8-bit base (LLM.int8)", 4: "4-bit base (NF4)"}
        said.append(
            f"adapters of rank {setup.adapter_rank} on"
            f" {_TARGETS.get(setup.targets, setup.targets)},"
            f" {base[setup.base_bits]}"
        )
    if setup.frozen_fraction > 0:
        said.append(f"{percent_text(setup.frozen_fraction)} of the parameters frozen")
    if not setup.overlaps:
        said.append("gradients reduced after the backward pass")
    if setup.stack is None:
        return ", ".join(said)
    if setup.is_stack_assumed:
        return f"no stack was named: as {setup.stack} runs it: {', '.join(said)}"
    facts = setup.facts
    assert facts is not None
    if not facts.degrees:
        said.append("every rank computes the whole model")
    if facts.always_shards:
        said.append("state sharded over the ranks")
    named = f"{setup.stack} {setup.release}".rstrip()
    return f"as {named} runs it: {', '.join(said)}"


def _has_attention(work: Work) -> bool:
    return work.transformer is not None or any(
        kind == "attention" or name == "scores"
        for kind, name in zip(work.operators.kind, work.operators.name, strict=True)
    )


def check_length(job: Job) -> None:
    """Refuse a job whose length nobody said: its time and cost are not known.

    Raises UsageError; the hint says how to give the length.
    """
    if job.total_source != NO_LENGTH:
        return
    is_text = job.work is not None and tokens_per_sample(job) is not None
    example = "--tokens 5B" if is_text else "--total-samples 2M"
    raise UsageError(
        f"the length of {job.name} is not known",
        hint=f"give {example} or --total-steps; without, advisor predict and advisor plan answer "
        "for a step",
    )


def tokens_per_sample(job: Job) -> int | None:
    """Return the tokens of a sample of text; None for other jobs."""
    model = None if job.work is None else job.work.transformer
    return model.sequence if model is not None and model.vocabulary > 0 else None


def tokens_per_s(job: Job, step_s: float) -> float | None:
    """Return the tokens that all devices together pass in a second [tokens/s]."""
    tokens = tokens_per_sample(job)
    return None if tokens is None else job.global_batch * tokens / step_s


def model_flop_per_step(job: Job) -> float | None:
    """Return what a step needs by the transformer's arithmetic; None for other jobs [flop]."""
    if job.work is None or job.work.transformer is None:
        return None
    model = job.work.transformer
    return job.global_batch * model.sequence * model_flop_per_token(model, job.work.setup)


def utilisation(job: Job, step_s: float, devices: int, device: Device) -> Utilisation | None:
    """Return the model flop utilisation of a step; None where no peak above its rate is known.

    ``step_s`` [s]; ``devices``: that the step runs on, idle ones included.

    Raises ValueError if the time or the number of devices is not positive.
    """
    if not (step_s > 0 and devices > 0):
        raise ValueError(f"need a positive time and number of devices: {step_s}, {devices}")
    flop = model_flop_per_step(job)
    if flop is None or job.work is None:
        return None
    precision = runs_as(device, job.work.precision)
    peak = peak_flop_per_s(device, precision)
    # What is faster than its peak has another one: that of a processor is a guess from its name.
    if peak is None or flop > step_s * devices * peak:
        return None
    return Utilisation(
        fraction=flop / (step_s * devices * peak), peak_flop_per_s=peak, precision=precision
    )


def training_units(
    job: Job, step_s: float, devices: int, device: Device | None, *, hours: float | None = None
) -> TrainingUnits:
    """Return a step and its whole job in users' units.

    ``step_s`` [s]; ``device``: none where the devices are of several kinds: no utilisation is
    given; ``hours``: of the whole job, pauses included; its steps alone where not given [h].

    Raises ValueError if the time or the number of devices is not positive.
    """
    tokens = tokens_per_sample(job)
    has_length = job.total_source != NO_LENGTH
    whole = job.paid_steps * step_s / HOUR_S if hours is None else hours
    return TrainingUnits(
        tokens_per_step=None if tokens is None else float(job.global_batch * tokens),
        tokens_per_s=tokens_per_s(job, step_s),
        utilisation=None if device is None else utilisation(job, step_s, devices, device),
        accelerator_hours=devices * whole if has_length else None,
        total_tokens=None
        if tokens is None or not has_length
        else job.total_steps * job.global_batch * tokens,
    )


def transformer_units(
    job: Job, step_s: float, devices: int, device: Device | None, *, hours: float | None = None
) -> TrainingUnits | None:
    """Return ``training_units`` of a transformer; None for other jobs, whose answers have none."""
    if job.work is None or job.work.transformer is None:
        return None
    return training_units(job, step_s, devices, device, hours=hours)
