"""What each released framework asks of a layout, with the place where it says so.

A rule is a fact about a combination that the framework refuses, or for which it has no switch.
Rules read columns, so that a search applies the same table to a block of layouts as a command
does to one (``planners.layouts.runnable``). The rules stand in ``megatron_rules`` and
``pytorch_rules``.

| framework   | what starts it                                                              |
|-------------|-----------------------------------------------------------------------------|
| `trainer`   | Hugging Face Trainer on PyTorch's DDP and FSDP2 (transformers, accelerate)  |
| `deepspeed` | Hugging Face Trainer, or `deepspeed.initialize`, with a DeepSpeed config    |
| `megatron`  | Megatron-LM's `pretrain_gpt.py`                                             |
| `torch`     | a recorded script with PyTorch's own calls (`advisor.ways.launch.recorded`) |

Releases read: megatron-core 0.16.1 and the `megatron/training/arguments.py` of its time,
deepspeed 0.19.8, transformers 5.23, accelerate 1.15, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.columns import RECOMPUTES, Layouts, Shapes
from advisor.planners.core.setup import Precision, TrainingSetup

Bools = NDArray[np.bool_]
Numbers = NDArray[Any]
Framework = Literal["trainer", "deepspeed", "megatron", "torch"]
NONE, SELECTIVE, FULL = (RECOMPUTES.index(r) for r in ("none", "selective", "full"))
HALF: Final = ("bf16", "fp16")
SINGLE: Final = ("fp32", "tf32")


class Case:
    """Layouts, shapes and software as the rules read them: arrays that broadcast.

    Fields of ``Layouts`` and ``Shapes`` are attributes of the same names.
    """

    setup: TrainingSetup
    precision: Precision
    has_shapes: bool

    dp: Numbers
    tp: Numbers
    pp: Numbers
    cp: Numbers
    ep: Numbers
    accumulation_steps: Numbers
    virtual_stages: Numbers
    zero_stage: Numbers
    recompute: Numbers
    is_sequence_parallel: Numbers
    shard_group: Numbers
    holds_all: Numbers
    offloads_optimizer: Numbers
    offloads_parameters: Numbers
    offloads_activations: Numbers
    layers: Numbers
    hidden: Numbers
    heads: Numbers
    kv_heads: Numbers
    ffn: Numbers
    sequence: Numbers
    experts: Numbers

    def __init__(
        self, layouts: Layouts, shapes: Shapes | None, setup: TrainingSetup, precision: Precision
    ) -> None:
        self.setup, self.precision = setup, precision
        self.has_shapes = shapes is not None
        for record in (layouts, shapes):
            for field in fields(record) if record is not None else ():
                setattr(self, field.name, np.asarray(getattr(record, field.name)))

    @property
    def ranks(self) -> Numbers:
        """Ranks that repeat or share the same state."""
        return self.dp * self.cp

    @property
    def is_whole(self) -> Bools:
        """Data parallelism alone: every rank computes the whole model."""
        return np.asarray(self.tp * self.pp * self.cp * self.ep == 1)

    @cached_property
    def is_hierarchical(self) -> Bools:
        """State is shared by fewer ranks than there are."""
        return (self.zero_stage > 0) & (self.shard_group < self.ranks)

    @cached_property
    def groups_divide(self) -> Bools:
        """Groups that share a copy of the state divide the ranks."""
        divides = self.ranks % np.maximum(self.shard_group, 1) == 0
        return np.asarray(~self.is_hierarchical | divides)

    @property
    def keeps_or_repeats(self) -> Bools:
        """Recomputation of all or nothing."""
        return np.asarray(self.recompute != SELECTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRule:
    """What one framework asks of a layout.

    Attributes
    ----------
    allows : callable
        From a case to which of its layouts are accepted.
    reason : str
        What is asked, as a sentence.
    source : str
        Where the framework says so: file and function.
    of_shapes : bool
        The rule needs the model's dimensions.
    """

    framework: Framework
    allows: Callable[[Case], Bools | bool]
    reason: str
    source: str
    of_shapes: bool = False


def rule(
    framework: Framework,
    reason: str,
    source: str,
    allows: Callable[[Case], Bools | bool],
    *,
    of_shapes: bool = False,
) -> FrameworkRule:
    """Return a rule, its words first."""
    return FrameworkRule(
        framework=framework, allows=allows, reason=reason, source=source, of_shapes=of_shapes
    )
