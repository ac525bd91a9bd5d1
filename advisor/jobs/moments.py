"""From a traced step's memory to the moments that the planners replay."""

from __future__ import annotations

from advisor.collectors.recording import DeepStep, Loading
from advisor.planners.core.nouns import PRECISION_BYTES, Moment


def moments_of(deep: DeepStep) -> tuple[Moment, ...]:
    """Return the moments of a traced step that are its peak for some micro-batch.

    What is fixed at a moment is weights, optimizer state, autocast's copies of the weights (which
    the planners count by themselves), then gradients as far as there can be some, then what was
    computed from these alone.
    """
    if deep.samples < 1:
        return ()
    micro_batch = max(deep.samples // max(deep.micro_batches, 1), 1)
    is_cast = deep.precision in ("bf16", "fp16") and deep.parameter_bytes >= 3 * deep.parameters
    model_bytes = deep.parameter_bytes + deep.optimizer_state_bytes
    model_bytes += PRECISION_BYTES["bf16"] * deep.parameters if is_cast else 0
    found = []
    for fixed, growing, blocks in deep.memory_frontier:
        beside = float(max(fixed - model_bytes, 0))
        gradients = min(beside, float(deep.gradient_bytes))
        found.append(
            Moment(
                gradient_bytes=gradients,
                temporary_bytes=beside - gradients,
                growing_bytes_per_sample=growing / micro_batch,
                blocks=blocks,
            )
        )
    # Whatever updated them where they were recorded.
    update = Moment(
        gradient_bytes=float(deep.gradient_bytes), temporary_bytes=float(deep.gradient_bytes),
        growing_bytes_per_sample=0.0, is_update=True,
    )  # fmt: skip
    return (*found, update) if found else ()


def input_bytes(loading: Loading | None, micro_batch: int) -> float:
    """Return what is loaded for a pass over ``micro_batch`` samples [bytes].

    A loader's batch at least: several passes may share one (the losses of a GAN).
    """
    if loading is None or loading.sample_bytes is None:
        return 0.0
    return loading.sample_bytes * max(micro_batch, loading.batch or 0)
