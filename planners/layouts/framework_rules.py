"""Rules of released frameworks about layouts, each with the place where the framework says so.

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
from dataclasses import dataclass
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

    def __init__(
        self, layouts: Layouts, shapes: Shapes | None, setup: TrainingSetup, precision: Precision
    ) -> None:
        self.layouts, self.shapes = layouts, shapes
        self.setup, self.precision = setup, precision

    def __getattr__(self, name: str) -> Numbers:
        record = self.layouts if name in Layouts.__slots__ else self.shapes
        column = np.asarray(getattr(record, name))
        setattr(self, name, column)
        return column

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


@dataclass(frozen=True, slots=True)
class FrameworkRule:
    """What one framework asks of a layout.

    Attributes
    ----------
    reason : str
        What is asked, as a sentence.
    source : str
        Where the framework says so: file and function.
    allows : callable
        From a case to which of its layouts are accepted.
    of_shapes : bool
        The rule needs the model's dimensions.
    """

    reason: str
    source: str
    allows: Callable[[Case], Bools | bool]
    of_shapes: bool = False
