"""The optimizer's update of the parameters as one operator a step.

| optimizer        | passes over fp32 numbers of a parameter, read off the code named             |
|------------------|------------------------------------------------------------------------------|
| ``adamw``        | 21: decay 2, lerp 3, second moment 2 + 4, sqrt 2, two scalings 4, update 4   |
| ``adamw-bf16``   | one kernel: weight and moments read and written, gradient read (torchao)     |
| ``adamw-8bit``   | one kernel, as above with 8-bit moments (bitsandbytes)                       |
| ``sgd``          | 3: one addition                                                              |
| ``sgd-momentum`` | 8: decay of the buffer 2, two additions 6                                    |
| ``adafactor``    | 20: square 4, row and column means 2, their product 1, two products 5,       |
|                  | root mean square 2, two scalings 4, addition 2 (transformers.Adafactor)      |

PyTorch 2 runs the first, the fourth and the fifth over lists of tensors (``foreach``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from advisor.planners.core.nouns import Operator, Precision, TrainingSetup

# A fused kernel's name here has no passes: its traffic is that of its operands, once.
_PASSES: Final[dict[str, int]] = {"adamw": 21, "sgd": 3, "sgd-momentum": 8, "adafactor": 20}
# Kernels in all (over lists of tensors), or of each tensor.
_CALLS: Final[dict[str, int]] = {"adamw": 10, "sgd": 1, "sgd-momentum": 3}
_CALLS_PER_TENSOR: Final[dict[str, int]] = {"adamw-8bit": 1, "adamw-bf16": 1, "adafactor": 15}
_FLOP: Final[dict[str, float]] = {
    "adamw": 8.0, "adamw-8bit": 10.0, "adamw-bf16": 8.0, "sgd": 2.0, "sgd-momentum": 4.0,
    "adafactor": 8.0,
}  # fmt: skip

# PyTorch's optimizers that update lists of tensors on accelerators unless told otherwise
# (``foreach``, on by itself since 2.0), as their classes are called.
OVER_LISTS: Final = frozenset({
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
})  # fmt: skip
# What a kernel over lists takes: 64 tensors of two lists, 48 of three
# (ATen/native/cuda/MultiTensorApply.cuh).
_TENSORS_A_KERNEL: Final = 48.0
# Python walks the parameters and groups them all the same: 0.7 us a tensor (SGD) to 1.5 (Adadelta)
# of the 8 to 14 that a call takes (benchmarks/eager_calls.py, 2026-11-22), and some to spare.
_WALK: Final = 0.2


def over_lists(calls: Mapping[str, float]) -> dict[str, float]:
    """Return by how much the calls of an update shrink where it runs over lists of tensors.

    Parameters
    ----------
    calls : mapping of str to float
        Of each operator, where they are called for every tensor.

    Examples
    --------
    Adam's eleven operators of 96 tensors; of 2 tensors each kernel takes half of what it could:

    >>> round(over_lists(dict.fromkeys("abcdefghijk", 96.0))["a"] * 96, 2)
    3.75
    >>> over_lists({"a": 2.0})
    {'a': 0.7}
    """
    walk = _WALK / max(len(calls), 1)
    return {
        name: min(1.0, max(1.0 / count, 1.0 / _TENSORS_A_KERNEL) + walk)
        for name, count in calls.items()
    }


def update(
    parameters: float, setup: TrainingSetup, precision: Precision, *, tensors: float
) -> Operator:
    """Return the optimizer's update.

    Parameters
    ----------
    tensors : float
        How many the parameters are spread over: some optimizers start kernels for each.

    Examples
    --------
    >>> update(1e6, TrainingSetup(), "bf16", tensors=10).bytes / 1e6  # 21 passes of 4 bytes
    84.0
    """
    name, stored = setup.optimizer, setup.stored_bytes(precision)
    if name in _PASSES:
        moved = _PASSES[name] * stored
    else:
        moved = 2 * stored + 2 * setup.moment_bytes(precision) + setup.gradient_bytes(precision)
    calls = _CALLS.get(name) or _CALLS_PER_TENSOR[name] * max(tensors, 1.0)
    return Operator(
        name=name, kind="optimizer", phase="optimizer", count=calls,
        flop=_FLOP[name] * parameters, bytes=moved * parameters, fixed_bytes=moved * parameters,
        dtype="bf16" if stored == 2 else "fp32",
    )  # fmt: skip
