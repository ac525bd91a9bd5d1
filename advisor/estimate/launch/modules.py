"""Names of a recorded model's modules, as PyTorch's parallel calls take them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from advisor.planners.step import Unit, is_normalisation, layer_kind


def module_name(name: str) -> str:
    """Return a module's name inside the model, without the class that stands before it.

    Recordings of several root modules (model and loss) prefix the root's class, and attributes
    are not written like classes.

    >>> module_name("Net.layers.0")
    'layers.0'
    """
    head, _, rest = name.partition(".")
    return rest if rest and head[:1].isupper() else name


def listed(names: Sequence[str]) -> str:
    """Return names as Python, counted ones in short.

    >>> listed(["h.0", "h.1", "h.2"])
    '[f"h.{i}" for i in range(3)]'
    """
    stem = names[0].rpartition(".")[0] if names else ""
    is_plain = re.fullmatch(r"[\w.-]*", stem) is not None  # a name may hold quotes and braces
    if is_plain and len(names) > 1 and list(names) == [f"{stem}.{i}" for i in range(len(names))]:
        return f'[f"{stem}.{{i}}" for i in range({len(names)})]'
    return json.dumps(list(names), ensure_ascii=False)


def tensor_parallel_plan(parts: Sequence[Unit]) -> str:
    """Divide the products of a block: those that end a half row-wise, the others column-wise.

    The lines expect a ``mesh`` with a dimension "tp".
    """
    block = next(u for u in parts if u.is_block)
    lines = []
    layers = block.layers
    for i, layer in enumerate(layers):
        if layer_kind(layer) != "matmul":
            continue
        after = [x for x in layers[i + 1 :] if layer_kind(x) == "matmul" or is_normalisation(x)]
        ends = not after or is_normalisation(after[0])
        way = "RowwiseParallel" if ends else "ColwiseParallel"
        name = re.sub(r"(^|\.)\d+\.", r"\1*.", module_name(layer.name), count=1)
        lines.append(f"    {json.dumps(name, ensure_ascii=False)}: {way}(),")
    return "\n".join(
        [
            "from torch.distributed.tensor.parallel import (",
            "    ColwiseParallel,\n    RowwiseParallel,\n    parallelize_module,\n)",
            "",
            "# A fused query-key-value projection must be split by heads in the block's forward.",
            'parallelize_module(model, mesh["tp"], {',
            *lines,
            "})\n",
        ]
    )
