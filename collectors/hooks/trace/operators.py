"""The table of a step, from observed operator calls: who, how often, how much, how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .flop import flop, is_attention, is_product
from .modules import Modules
from .storages import WHOLE, key_of, size_bytes, tensors_in

_PRECISIONS = {
    "torch.float64": "fp64", "torch.complex128": "fp64",
    "torch.float32": "fp32", "torch.complex64": "fp32",
    "torch.bfloat16": "bf16", "torch.float16": "fp16",
    "torch.float8_e4m3fn": "fp8", "torch.float8_e5m2": "fp8",
    "torch.int8": "int8", "torch.uint8": "int8",
}  # fmt: skip

# These make a tensor without touching its memory.
_NO_TRAFFIC = ("empty", "new_empty", "lift_fresh")
# These put a micro-batch's gradient into the parameter's.
_ACCUMULATES = frozenset(["aten::add_", "aten::copy_", "aten::_foreach_add_"])
# These read as much of their first operand as they return, not all of it.
_GATHERS = frozenset(["embedding", "index_select", "index", "gather", "_unsafe_index", "take"])


class OperatorCall:
    """One call as observed; sizes are bytes, keys name storages."""

    name = dtype = shapes = ""
    flop = 0.0
    reads: list[tuple[int, int]]
    writes: list[tuple[int, int]]
    leaves: list[Any]
    wanted_gradients = 0
    took: Any = 0
    owner = -1
    is_view = is_grad_enabled = is_backward = is_optimizer = is_inside_module = False
    is_product = is_gather = False
    group: Any = None  # of a collective: its group's name and size
    # Ranks that share this work, and of which of its storages they have others: ``whole``.
    ranks, parts = 1, WHOLE
    times = 1  # as often as it is counted: passes of an accumulated step are alike


_schemas: dict[Any, tuple[str, tuple[str, ...], tuple[int, ...]]] = {}


def _schema(func: Any) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    """Return an operator's full name, its arguments' names, and which of them it writes to."""
    known = _schemas.get(func)
    if known is None:
        schema = getattr(func, "_schema", None)
        if schema is None:  # of higher order
            known = ("hop::" + str(getattr(func, "__name__", func)), (), ())
        else:
            written = [
                index
                for index, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
            known = (schema.name, tuple(a.name for a in schema.arguments), tuple(written))
        _schemas[func] = known
    return known


def observe(func: Any, args: Any, kwargs: Any, result: Any) -> OperatorCall:
    """Return what can be said of a call right after it; cheap, for the tensors must not stay."""
    import torch
    from torch.utils.weak import TensorWeakRef

    call = OperatorCall()
    call.name, names, written = _schema(func)
    values = list(args)
    if kwargs or len(values) < len(names):
        values += [kwargs.get(name) for name in names[len(values) :]]
    inputs = list(tensors_in(values))
    outputs = list(tensors_in(result))
    call.reads = [(key_of(tensor), size_bytes(tensor)) for tensor in inputs]
    known = {key for key, _ in call.reads}
    made = [(key_of(tensor), size_bytes(tensor)) for tensor in outputs]
    fresh = [(key, size) for key, size in made if key not in known]
    mutated = [t for index in written if index < len(values) for t in tensors_in(values[index])]
    call.writes = fresh + [(key_of(tensor), size_bytes(tensor)) for tensor in mutated]
    short = call.name.rpartition("::")[2]
    call.is_view = (not call.writes and bool(outputs)) or short.startswith(_NO_TRAFFIC)
    if short in _GATHERS and made:
        call.reads[0] = (call.reads[0][0], sum(size for _, size in made))
    floating = [t for t in inputs + outputs if t.is_floating_point() or t.is_complex()]
    call.dtype = _precision(floating, short)
    if not call.is_view:
        strided = [t for t in floating if str(t.layout) == "torch.strided"]
        elements = max((t.numel() for t in strided), default=0)
        if isinstance(values[0] if values else None, (list, tuple)):
            elements = sum(t.numel() for t in tensors_in(values[0]))
        call.flop = flop(short, values, names, result, elements)
    call.shapes = ",".join("x".join(map(str, tensor.shape)) for tensor in inputs[:8])
    call.is_grad_enabled = torch.is_grad_enabled()
    # Weakly: what a checkpoint detaches is a leaf too, and must not live longer for the trace.
    call.leaves = [TensorWeakRef(t) for t in inputs if t.requires_grad and t.is_leaf]
    call.wanted_gradients = _gradients_wanted(short, values)
    call.is_product, call.is_gather = is_product(short), short in _GATHERS
    if "c10d" in call.name:
        call.group = _group(func, args)
    return call


def _group(func: Any, args: Any) -> Any:
    """Return the name and the size of a collective's group; None where it cannot be told."""
    try:
        from torch.distributed._tools.fake_collectives import CollectiveOp

        group = CollectiveOp.get_process_group(func, args)
        return str(group.group_name), int(group.size())
    except Exception:  # a wait, or a torch that does not list its collectives
        return None


def _precision(floating: list[Any], short: str) -> str:
    """Name the first floating operand's type; integers count no flop and pass for fp32."""
    if not floating:
        return "fp32"
    precision = _PRECISIONS.get(str(floating[0].dtype), "fp32")
    if precision == "fp32" and floating[0].is_cuda and is_product(short):
        import torch

        is_convolution = "convolution" in short or "rnn" in short
        backend = torch.backends.cudnn if is_convolution else torch.backends.cuda.matmul
        return "tf32" if backend.allow_tf32 else "fp32"
    return precision


def _gradients_wanted(short: str, values: list[Any]) -> int:
    """Return how many operands of a product will get a gradient; recurrent layers give both."""
    if not is_product(short):
        return 0
    operands = [t for t in tensors_in(values[:3]) if t.dim() > 1]
    wanted = sum(t.requires_grad for t in operands)
    return 2 if "rnn" in short and wanted else min(wanted, 2)


def leading_size(calls: list[OperatorCall], fixed: set[int]) -> int:
    """Return the first dimension of the largest forward product, or 0."""
    products = [c for c in calls if not c.is_backward and c.flop > 0 and "x" in c.shapes]
    if not products:
        return 0
    largest = max(products, key=lambda call: call.flop)
    return int(largest.shapes.partition("x")[0])


def summarise(
    calls: list[OperatorCall], fixed: set[int], modules: Modules,
    saved: list[list[tuple[int, int, int]]], parts: Mapping[int, int] = WHOLE,
    sizes: Mapping[int, int] = WHOLE,
) -> dict[str, Any]:  # fmt: skip
    """Return operators, layers, saved bytes, precision and flags of a step.

    ``fixed``: storages of parameters, buffers, gradients and optimizer state; completed here by
    what is computed from these alone or accumulated into them; ``saved``: what was alive when each
    backward pass began; ``parts``: storage -> ranks that hold the others (``whole``);
    ``sizes``: a parameter's identity -> its elements on all ranks.
    """
    _complete_fixed(calls, fixed)
    phases = [_phase(call, fixed) for call in calls]
    layers, leaf_of_call = modules.layers(sizes)
    for layer in layers:
        layer.update(forward_ns=0, backward_ns=0, forward_flop=0.0, backward_flop=0.0)
        layer["saved_bytes"] = 0
    table: dict[tuple[str, str, str, str, str], list[float]] = {}
    for call, phase in zip(calls, phases):
        if not call.is_view:
            kind = "" if phase == "optimizer" else modules.fused_kind(call.owner)
            _add(table, call, phase, kind, fixed)
        if phase != "optimizer" and leaf_of_call and (call.owner >= 0 or not call.is_backward):
            layer = layers[leaf_of_call[max(call.owner, 0)]]
            layer[phase + "_ns"] += call.took * call.times
            layer[phase + "_flop"] += call.flop * call.ranks * call.times
    saved_bytes = 0
    for snapshot in saved:
        growing = [
            (size * parts.get(key, 1), owner) for key, size, owner in snapshot if key not in fixed
        ]
        saved_bytes = max(saved_bytes, sum(size for size, _ in growing))
        for size, owner in growing:
            if leaf_of_call:
                layers[leaf_of_call[max(owner, 0)]]["saved_bytes"] += size
    return {
        "operators": [
            dict(zip(_COLUMNS, key + tuple(sums))) for key, sums in sorted(table.items())
        ],
        "layers": layers,
        "saved_bytes": saved_bytes,
        "precision": _main_precision(calls),
        # What distributed tensors want of their parts is not seen: wanted are the whole ones.
        "flags": [] if parts else _check_gradients(calls, phases),
    }


_COLUMNS = (
    "name", "phase", "dtype", "shapes", "fused_by",
    "count", "flop", "bytes", "fixed_bytes", "time_ns",
)  # fmt: skip


def _add(
    table: dict[Any, list[float]], call: OperatorCall, phase: str, kind: str, fixed: set[int]
) -> None:
    key = (call.name, phase, call.dtype, call.shapes, kind)
    row = table.setdefault(key, [0, 0.0, 0, 0, 0])
    traffic = call.reads + call.writes
    is_update = phase == "optimizer"  # of which its shards tell more
    ranks, parts = (1, WHOLE) if is_update else (call.ranks, call.parts)
    times = call.times
    row[0] += times
    row[1] += call.flop * ranks * times
    row[2] += sum(size * parts.get(key, 1) for key, size in traffic) * times
    row[3] += sum(size * parts.get(key, 1) for key, size in traffic if key in fixed) * times
    row[4] += call.took * times


def _complete_fixed(calls: list[OperatorCall], fixed: set[int]) -> None:
    """Add what is accumulated into gradients, and what is computed from fixed storages alone."""
    for call in calls:
        accumulates = call.name in _ACCUMULATES and call.is_backward
        if accumulates and any(key in fixed for key, _ in call.writes):
            fixed.update(key for key, _ in call.reads)
    for call in calls:
        read = [key for key, _ in call.reads]
        if read and all(key in fixed for key in read):
            fixed.update(key for key, _ in call.writes)


def _phase(call: OperatorCall, fixed: set[int]) -> str:
    """Optimizer is also what touches the model alone outside of both passes: clipping."""
    if call.is_backward:
        return "backward"
    if call.is_optimizer:
        return "optimizer"
    touched = call.reads or call.writes
    is_model_alone = bool(touched) and all(key in fixed for key, _ in touched)
    return "optimizer" if is_model_alone and not call.is_inside_module else "forward"


def _main_precision(calls: list[OperatorCall]) -> str:
    totals: dict[str, float] = {}
    for call in calls:
        if is_product(call.name.rpartition("::")[2]):
            totals[call.dtype] = totals.get(call.dtype, 0.0) + call.flop
    return max(totals, key=lambda dtype: totals[dtype]) if totals else "fp32"


def _check_gradients(calls: list[OperatorCall], phases: list[str]) -> list[str]:
    """Compare the backward products with what the forward products and their operands predict.

    Each operand that wants a gradient costs one product of the same size; fused attention five
    products for two.
    """
    expected = actual = recomputed = 0.0
    for call, phase in zip(calls, phases):
        short = call.name.rpartition("::")[2]
        if not is_product(short):
            continue
        if phase == "backward":
            actual += call.flop
            recomputed += call.flop if call.is_inside_module else 0.0
        elif phase == "forward" and call.is_grad_enabled and call.wanted_gradients:
            factor = 2.5 if is_attention(short) else float(call.wanted_gradients)
            expected += factor * call.flop
    flags = []
    if recomputed:
        flags.append("activations are recomputed in the backward pass")
    if expected and not 0.9 <= (actual - recomputed) / expected <= 1.1:
        flags.append(
            "backward products are %.2f of what the forward products predict"
            % ((actual - recomputed) / expected)
        )
    return flags
