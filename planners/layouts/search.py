"""The fastest of all valid layouts of a transformer on a cluster, and why there is none.

What is said where nothing fits names the nearest miss, or the constraint that leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from advisor.planners.core import (
    GIB,
    LARGEST_DIMENSION,
    MOST_REPEATED,
    Machines,
    PlanningError,
    Transformer,
    check_not_negative,
    check_positive,
    impossible,
    refused,
)
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.layouts.problem import (
    POSSIBLE,
    Found,
    LayoutProblem,
    SearchSpace,
    divisors,
    fills_stages,
    recomputes,
    shards,
    splits,
)
from advisor.planners.memory import host_bytes

# A batch farther off than this is another job: none is proposed.
_FARTHEST_BATCH: Final = 256
# Nobody has a larger cluster of equal devices.
_MOST_DEVICES: Final = 100_000
# The largest accelerator in the catalogue holds 288 GB; twice that is to come.
_LARGEST_DEVICE_GIB: Final = 600.0
# What of a space moves memory, by its option on the command line.
_OPTIONS: Final = {
    "micro_batch": "--micro-batch", "accumulation_steps": "--accumulate",
    "zero_stages": "--zero", "recomputes": "--recompute", "offloads": "--offload",
    "moves": "--offload", "updates_in_backward": "--optimizer-in-backward",
}  # fmt: skip
_SPLITS: Final = ("tp", "pp", "cp", "ep")
# How sentences call what a space fixes.
_WORDS: Final = {
    "micro_batch": "a micro-batch of",
    "accumulation_steps": "accumulation steps of",
    "zero_stages": "ZeRO stage",
    "recomputes": "recompute",
    "offloads": "offload",
    "moves": "offload",
    "updates_in_backward": "the optimizer in the backward pass",
}


def node_counts(nodes: int) -> list[int]:
    """Return how many nodes a smaller layout may use: powers of two, and all."""
    return sorted({2**i for i in range(nodes.bit_length()) if 2**i <= nodes} | {nodes})


def check(problem: LayoutProblem, devices: int, global_batch: int, space: SearchSpace) -> None:
    """Refuse sizes that make no sense, and constraints that contradict one another.

    Raises PlanningError naming the first of them.
    """
    _check_machines(problem.machines)
    nodes = -(-devices // int(problem.machines.devices_per_node))
    check_sizes(problem.transformer, nodes, global_batch)
    _check_space(problem.transformer, space, devices)


def check_sizes(transformer: Transformer, nodes: int, global_batch: int) -> None:
    """Refuse sizes that make no sense.

    Raises PlanningError naming the first such size.
    """
    sizes = {
        "layers": transformer.layers,
        "hidden": transformer.hidden,
        "heads": transformer.heads,
        "sequence": transformer.sequence,
        "vocabulary": transformer.vocabulary,
        "experts": transformer.experts,
        "nodes": nodes,
        "global batch": global_batch,
    }
    limits = {
        "layers": MOST_REPEATED, "hidden": 1_000_000, "nodes": 100_000, "global batch": 10**7
    }  # fmt: skip
    for name, size in sizes.items():
        if size < 1 or size > limits.get(name, LARGEST_DIMENSION):
            raise refused(f"{name} of {size} is out of range")
    if transformer.head_width is None and transformer.hidden % transformer.heads:
        raise refused(
            f"{transformer.heads} heads do not divide a hidden size of {transformer.hidden}"
        )


def _check_machines(machines: Machines) -> None:
    """Refuse rates and sizes of devices and links that are none."""
    names = ("flop_per_s", "memory_bytes_per_s", "memory_bytes", "intra_bytes_per_s",
             "network_bytes_per_s", "devices_per_node", "host_bytes_per_s")  # fmt: skip
    check_positive("machines", **{name: getattr(machines, name) for name in names})
    # Hosts may have no memory to spare, or as much as is wanted.
    on_host = np.minimum(machines.host_memory_bytes, np.finfo(float).max)
    check_not_negative(
        "machines", kept_free_bytes=machines.kept_free_bytes, host_memory_bytes=on_host
    )


def _check_space(transformer: Transformer, space: SearchSpace, devices: int) -> None:
    """Refuse constraints that contradict one another."""
    tp, pp, heads = space.tp or 1, space.pp or 1, transformer.heads
    may_be = _degrees_may_be(transformer, devices, space)
    if tp < 1 or pp < 1 or devices % (tp * pp):
        split = " x ".join(f"{name} {n}" for name, n in (("tp", tp), ("pp", pp)) if n != 1)
        counted = "1 device" if devices == 1 else f"{devices} devices"
        raise refused(f"{split} does not divide {counted}", may_be)
    if heads % tp:
        raise refused(f"{heads} heads do not divide over tp {tp}", may_be)
    if pp > transformer.layers:
        raise refused(
            f"{transformer.layers} layers do not fill {pp} stages",
            f"use at most pp {transformer.layers}",
        )
    if not fills_stages(transformer.layers, pp):
        raise refused(
            f"{transformer.layers} layers over pp {pp} leave the last stage empty", may_be
        )


def _degrees_may_be(transformer: Transformer, devices: int, space: SearchSpace) -> str:
    """Return which tensor- and pipeline-parallel degrees divide the model and the devices."""
    tp, pp = space.tp or 1, space.pp or 1
    tps = [t for t in divisors(transformer.heads) if tp != 1 and devices % (t * max(pp, 1)) == 0]
    pps = [
        p for p in divisors(devices)
        if pp != 1 and fills_stages(transformer.layers, p) and (devices // p) % max(tp, 1) == 0
    ]  # fmt: skip
    able = {"tp": tps, "pp": pps}
    said = [f"{name} may be {', '.join(map(str, some))}" for name, some in able.items() if some]
    return "; ".join(said) or "change the number of devices"


def nothing_fits(
    problem: LayoutProblem, found: Found, devices: int, global_batch: int, space: SearchSpace,
    asked: SearchSpace | None = None,
) -> PlanningError:  # fmt: skip
    """Return why no layout was found: a constraint, what does not divide, or the nearest miss.

    ``asked``: what of the space somebody asked for; all of it by default.
    """
    if found.nearest is None:
        return _nothing_divides(problem, devices, global_batch, space, asked or space)
    excess, layout = found.nearest
    more = "".join(f", {name} {n}" for name in ("cp", "ep") if (n := getattr(layout, name)) > 1)
    nearest = (
        f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}{more}, ZeRO {layout.zero_stage}, "
        f"recompute {layout.recompute}"
    )
    if excess <= 0:
        columns, room = layout_columns(layout), float(problem.machines.host_memory_bytes)
        on_host = float(host_bytes(problem.shapes, columns, problem.machines, problem.software))
        return impossible(
            f"no layout fits in memory: the nearest ({nearest}) moves {on_host / GIB:.1f} GiB to "
            f"a machine's main memory of {room / GIB:.1f} GiB",
            "choose machines with more main memory, or more machines",
        )
    capacity, free = problem.capacity_bytes, float(problem.machines.kept_free_bytes)
    ways = [
        *_more_devices(problem, capacity, excess, devices, global_batch, space),
        *_left_open(problem, devices, global_batch, space, asked or space),
    ]
    smaller = "with shorter sequences" if ways else "with a smaller model"
    return misses(nearest, capacity, free, excess, [*ways, smaller], sureness=problem.sureness)


def misses(
    nearest: str, capacity: float, free: float, excess: float, ways: Sequence[str], *,
    sureness: float = POSSIBLE,
) -> PlanningError:  # fmt: skip
    """Return by how much the nearest layout misses a device's memory, and what would fit.

    ``nearest``: its degrees in words; ``capacity``, ``free``: of a device, what layouts may fill
    and what is kept free; ``ways``: by which else it would fit ("with ..."); ``sureness``: how
    likely what is said to be needed is enough.
    """
    there, needed = (capacity + free) / GIB, (capacity + excess) / GIB
    kept = f", of which {free / GIB:.1f} GiB is kept free" if free >= GIB else ""
    larger = there + excess / GIB
    is_made = larger <= _LARGEST_DEVICE_GIB
    sure = "" if sureness == POSSIBLE else f" to fit with {100 * sureness:.0f} %"
    found = [f"with devices of {int(np.ceil(larger))} GiB"] if is_made else []
    found += ways
    said = ", ".join(found[:-1]) + (", or " if found[1:] else "") + found[-1]
    return impossible(
        f"no layout fits in memory ({there:.1f} GiB{kept}): the nearest ({nearest}) needs "
        f"{needed:.1f} GiB{sure} and misses by {excess / GIB:.1f} GiB",
        f"it would fit {said}",
    )


def _more_devices(
    problem: LayoutProblem, capacity: float, excess: float, devices: int, batch: int,
    space: SearchSpace,
) -> Iterator[str]:  # fmt: skip
    """Yield the number of devices, of these many or of a few times as many, over which it fits."""
    most = devices * (capacity + excess) / capacity if capacity > 0 else np.inf
    if most > _MOST_DEVICES:
        return
    times = int(np.ceil(most / devices))
    doubled = 1 << (times - 1).bit_length()  # batches have powers of two among their divisors
    for count in (devices * each for each in sorted({times, doubled, 2 * doubled, 4 * doubled})):
        if count <= _MOST_DEVICES and problem.fits(count, batch, space):
            yield f"with {count} devices"
            return


def _left_open(
    problem: LayoutProblem, devices: int, batch: int, space: SearchSpace, asked: SearchSpace
) -> Iterator[str]:
    """Yield the options that stand in the way: without each alone, it fits."""
    for name, value in asked.fixed.items():
        freed = replace(space, **{name: getattr(SearchSpace(), name)})
        if name in _OPTIONS and problem.fits(devices, batch, freed):
            yield f"without {_option(name, value)}"


def _nothing_divides(
    problem: LayoutProblem, devices: int, global_batch: int, space: SearchSpace,
    asked: SearchSpace,
) -> PlanningError:  # fmt: skip
    model = problem.transformer
    said = {name: _said(name, value) for name, value in asked.fixed.items()}
    axis = splits(model, devices, global_batch, space)
    is_sharded = "zero_stages" in said and min(space.zero_stages) > 0
    if np.size(axis.dp) and is_sharded and np.all(axis.shard_group == 1):
        others = " and ".join(word for name, word in said.items() if name in _SPLITS)
        return impossible(
            f"{said['zero_stages']} shares state among data-parallel ranks, and "
            f"{others or 'one sample'} on {devices} devices leaves no data parallelism",
            "leave the ZeRO stage open or give 0, or use smaller degrees or more devices",
        )
    if _has_any(problem, devices, global_batch, space):
        return impossible(
            f"no released framework runs {' with '.join(said.values()) or 'any layout'} on "
            f"{devices} devices",
            "leave one of them open",
        )
    for name in said:
        freed = replace(space, **{name: getattr(SearchSpace(), name)})
        if _has_any(problem, devices, global_batch, freed):
            others = " and ".join(word for other, word in said.items() if other != name)
            return impossible(
                f"{said[name]} leaves no layout on {devices} devices with a "
                f"batch of {global_batch}{f' with {others}' if others else ''}",
                "leave it open, or change the other constraints, the batch or the devices",
            )
    near = _nearest_batch(problem, devices, global_batch, space)
    return impossible(
        f"nothing divides: {model.layers} layers, {model.heads} heads and a batch "
        f"of {global_batch} on {devices} devices",
        f"a batch of {near} divides" if near else "use another number of devices",
    )


def _said(name: str, value: object) -> str:
    """Return what is fixed, as the options of the command line call it."""
    if value == ():
        return f"no {_WORDS.get(name, name)}"
    if value is True:
        return _WORDS[name]
    shown = ", ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{_WORDS.get(name, name)} {shown}"


def _option(name: str, value: object) -> str:
    """Return an option as it was typed."""
    if value == ():
        return "--no" + _OPTIONS[name][1:]
    if value is True:
        return _OPTIONS[name]
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{_OPTIONS[name]} {shown}"


def _has_any(problem: LayoutProblem, devices: int, batch: int, space: SearchSpace) -> bool:
    """Whether any layout is valid, whatever it needs of memory."""
    axis = splits(problem.transformer, devices, batch, space)
    if not np.size(axis.dp) or not recomputes(space)["recompute"].size:
        return False
    needs_ranks = devices > 1 and all(zero > 0 for zero in space.zero_stages)
    return bool(shards(space)["zero_stage"].size) and (
        not needs_ranks or bool(np.any(axis.shard_group > 1))
    )


def _nearest_batch(
    problem: LayoutProblem, devices: int, batch: int, space: SearchSpace
) -> int | None:
    """Return the batch nearest to the one asked for that can be laid out; None in a wide range."""
    for off in range(1, min(max(devices, batch), _FARTHEST_BATCH) + 1):
        for near in (batch + off, batch - off):
            if near >= 1 and _has_any(problem, devices, near, space):
                return near
    return None
