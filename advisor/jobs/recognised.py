"""Recorded models that are transformers: what their layouts then rest on, said and settable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from advisor.collectors.recording import OperatorCount
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.step.model_units import TransformerBlocks, transformer_blocks, units

_NOTE: Final = "recognised as a transformer"


def recognised(job: Job, *, heads: int | None = None) -> Job:
    """Return a recorded job with a note of the transformer that its modules are.

    ``heads``: attention heads, where the user knows better than the recording.

    Raises UsageError if ``heads`` are given for a model that was not recognised, or do not divide
    its width.
    """
    work = job.work
    blocks = "it was not recorded" if work is None or not work.layers else (
        transformer_blocks(work, units(work), heads=heads or job.heads)
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


def recorded_heads(operators: Iterable[OperatorCount]) -> int | None:
    """Return the heads of the recorded attention operators; None where none was seen whole.

    PyTorch's fused attention gets queries as (samples, heads, tokens, width), first of its
    operands.
    """
    seen: Counter[int] = Counter()
    for operator in operators:
        sizes = operator.shapes.split(",")[0].split("x")
        is_attention = "scaled_dot_product" in operator.name and operator.phase == "forward"
        if is_attention and len(sizes) == 4 and sizes[1].isdigit():
            seen[int(sizes[1])] += operator.count
    return seen.most_common(1)[0][0] if seen else None
