"""The fastest of all valid layouts of a transformer on a cluster, and why there is none.

What is said where nothing fits names the nearest miss, or the constraint that leaves nothing.
"""

from __future__ import annotations

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
)
from advisor.planners.layouts.problem import (
    Found,
    LayoutProblem,
    SearchSpace,
    divisors,
    fills_stages,
    recomputes,
    shards,
    splits,
)

# A batch farther off than this is another job: none is proposed.
_FARTHEST_BATCH: Final = 256
# Nobody has a larger cluster of equal devices.
_MOST_DEVICES: Final = 100_000
# The largest accelerator in the catalogue holds 288 GB; twice that is to come.
_LARGEST_DEVICE_GIB: Final = 600.0
# How the options of the command line call what a space fixes.
_WORDS: Final = {
    "micro_batch": "a micro-batch of",
    "accumulation_steps": "accumulation steps of",
    "zero_stages": "ZeRO stage",
    "recomputes": "recompute",
    "offloads": "offload",
}


def node_counts(nodes: int) -> list[int]:
    """Return how many nodes a smaller layout may use: powers of two, and all."""
    return sorted({2**i for i in range(nodes.bit_length()) if 2**i <= nodes} | {nodes})


def search(
    transformer: Transformer,
    machines: Machines,
    nodes: int,
    global_batch: int,
    *,
    space: SearchSpace | None = None,
) -> Found:
    """Return the fastest of all valid layouts on equal machines, with what was looked at.

    The constants are those that ``LayoutProblem`` starts from; fitted ones are handed to it.

    ``machines``: scalar columns of one kind of node.

    Raises PlanningError if sizes make no sense, nothing divides, or nothing fits; the message
    names the nearest miss and what would make it fit.
    """
    problem = LayoutProblem(transformer=transformer, machines=machines)
    space, devices = space or SearchSpace(), nodes * int(machines.devices_per_node)
    check(problem, devices, global_batch, space)
    found = problem.search(devices, global_batch, space)
    if found.best is None:
        raise nothing_fits(problem, found, devices, global_batch, space)
    return found


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
            raise PlanningError(f"{name} of {size} is out of range", exit_code=2)
    if transformer.head_width is None and transformer.hidden % transformer.heads:
        raise PlanningError(
            f"{transformer.heads} heads do not divide a hidden size of {transformer.hidden}",
            exit_code=2,
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
    tp, pp = space.tp or 1, space.pp or 1
    if tp < 1 or pp < 1 or devices % (tp * pp):
        raise PlanningError(
            f"tp {tp} x pp {pp} does not divide {devices} devices",
            hint="leave one of them open, or change the number of devices",
            exit_code=2,
        )
    if transformer.heads % tp:
        raise PlanningError(
            f"{transformer.heads} heads do not divide over tp {tp}",
            hint=f"tp may be {', '.join(map(str, divisors(transformer.heads)))}",
            exit_code=2,
        )
    if pp > transformer.layers:
        raise PlanningError(
            f"{transformer.layers} layers do not fill {pp} stages",
            hint=f"use at most pp {transformer.layers}",
            exit_code=2,
        )
    if not fills_stages(transformer.layers, pp):
        able = [p for p in divisors(devices // tp) if fills_stages(transformer.layers, p)]
        raise PlanningError(
            f"{transformer.layers} layers over pp {pp} leave the last stage empty",
            hint=f"pp may be {', '.join(map(str, able))}",
            exit_code=2,
        )


def nothing_fits(
    problem: LayoutProblem, found: Found, devices: int, global_batch: int, space: SearchSpace
) -> PlanningError:
    """Return why no layout was found: a constraint, what does not divide, or the nearest miss."""
    if found.nearest is None:
        return _nothing_divides(problem, devices, global_batch, space)
    excess, layout = found.nearest
    nearest = (
        f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}, ZeRO {layout.zero_stage}, "
        f"recompute {layout.recompute}"
    )
    if excess <= 0:
        return PlanningError(
            f"no layout fits: the nearest ({nearest}) offloads more than the hosts' memory",
            hint="add host memory or nodes",
            exit_code=3,
        )
    capacity, free = problem.capacity_bytes, float(problem.machines.kept_free_bytes)
    kept = f" (of which {free / GIB:.0f} GiB is kept free)" if free >= GIB else ""
    return PlanningError(
        f"no layout fits into {(capacity + free) / GIB:.0f} GiB{kept}: the nearest ({nearest}) "
        f"misses by {excess / GIB:.1f} GiB",
        hint=_what_would_fit(capacity, free, excess, devices),
        exit_code=3,
    )


def _what_would_fit(capacity: float, free: float, excess: float, devices: int) -> str:
    """Return larger devices, and more of them, as far as there are such."""
    ways = []
    needed = (capacity + free + excess) / GIB
    if needed <= _LARGEST_DEVICE_GIB:
        ways.append(f"with devices of {needed:.0f} GiB")
    count = devices * (capacity + excess) / capacity if capacity > 0 else np.inf
    # Beyond, spreading the state is no way out: what is left over does not shrink with devices.
    if count <= _MOST_DEVICES:
        ways.append(f"with about {int(np.ceil(count))} devices")
    ways.append("with shorter sequences" if ways else "with a smaller model")
    return "it would fit " + ", ".join(ways[:-1]) + (", or " if ways[1:] else "") + ways[-1]


def _nothing_divides(
    problem: LayoutProblem, devices: int, global_batch: int, space: SearchSpace
) -> PlanningError:
    model = problem.transformer
    said = {name: _said(name, value) for name, value in space.fixed.items()}
    axis = splits(model, devices, global_batch, space)
    if np.size(axis.dp) and min(space.zero_stages) > 0 and np.all(axis.shard_group == 1):
        others = " and ".join(word for name, word in said.items() if name != "zero_stages")
        return PlanningError(
            f"{said['zero_stages']} shares state among data-parallel ranks, and "
            f"{others or 'one sample'} on {devices} devices leaves no data parallelism",
            hint="leave the ZeRO stage open or give 0, or use smaller degrees or more devices",
            exit_code=3,
        )
    if _has_any(problem, devices, global_batch, space):
        return PlanningError(
            f"no released framework runs {' with '.join(said.values()) or 'any layout'} on "
            f"{devices} devices",
            hint="leave one of them open",
            exit_code=3,
        )
    for name in space.fixed:
        freed = replace(space, **{name: getattr(SearchSpace(), name)})
        if _has_any(problem, devices, global_batch, freed):
            others = " and ".join(word for other, word in said.items() if other != name)
            return PlanningError(
                f"{said[name]} leaves no layout on {devices} devices with a "
                f"batch of {global_batch}{f' with {others}' if others else ''}",
                hint="leave it open, or change the other constraints, the batch or the devices",
                exit_code=3,
            )
    near = _nearest_batch(problem, devices, global_batch, space)
    return PlanningError(
        f"nothing divides: {model.layers} layers, {model.heads} heads and a batch "
        f"of {global_batch} on {devices} devices",
        hint=f"a batch of {near} divides" if near else "use another number of devices",
        exit_code=3,
    )


def _said(name: str, value: object) -> str:
    """Return what is fixed, as the options of the command line call it."""
    shown = ", ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{_WORDS.get(name, name)} {shown}"


def _has_any(problem: LayoutProblem, devices: int, batch: int, space: SearchSpace) -> bool:
    """Whether any layout is valid, whatever it needs of memory."""
    axis = splits(problem.transformer, devices, batch, space)
    if not np.size(axis.dp) or not recomputes(space)["recompute"].size:
        return False
    needs_ranks = all(zero > 0 for zero in space.zero_stages)
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
