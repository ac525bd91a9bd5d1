"""Low-rank adapters among the modules of a model, as their libraries name what they are made of.

The matrix that narrows is ``lora_A`` (peft's, by the adapter's name; loralib's is a parameter) or
``lora_a`` (torchtune's), and the module that has it is, or holds, the frozen one beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_QUANTISED = {"Params4bit": 4, "Int8Params": 8}  # bitsandbytes'


def adapters_in(roots: Iterable[Any]) -> dict[str, Any]:
    """Return the largest rank of what learns, the modules' own names, the bits of a base weight.

    Empty where there are none.
    """
    ranks: list[int] = []
    names: dict[str, None] = {}
    bits = 0
    for root in roots:
        for path, module in root.named_modules():
            narrow = getattr(module, "lora_A", getattr(module, "lora_a", None))
            own = getattr(narrow, "parameters", lambda one=narrow: [one])
            learning = [one for one in own() if getattr(one, "requires_grad", False)]
            if not learning:
                continue
            ranks += [int(one.shape[0]) for one in learning if one.dim() > 1]
            last = path.split(".")
            names[".".join(last[-2:] if last[-1].isdigit() else last[-1:])] = None
            weight = getattr(getattr(module, "base_layer", module), "weight", None)
            if weight is not None:
                kinds = [kind.__name__ for kind in type(weight).__mro__]
                stored = 8 * int(weight.element_size())
                bits = next((_QUANTISED[kind] for kind in kinds if kind in _QUANTISED), stored)
    if not ranks:
        return {}
    return {"adapter_rank": max(ranks), "adapter_modules": list(names), "base_bits": bits}
