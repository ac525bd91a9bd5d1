"""Every valid layout of a transformer on so many devices, as three axes that broadcast.

Axis 0 (``splits``): degrees, micro-batch and schedule, already checked against one another.
Axis 1 (``recomputes``): recomputation. Axis 2 (``shards``): ZeRO stage, shard group and offload.
What depends on one axis is computed on one axis only; the last two are short and the same for
every split, so that a chunk of splits is a dense block. Tensor-parallel ranks always share the
sequence outside their products (sequence parallelism): the same bytes travel, less is kept
(Korthikanti et al., 2022, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.columns import OFFLOADS, RECOMPUTES, Layouts, Offload
from advisor.planners.core.nouns import Layout, Recompute, Schedule, Transformer
from advisor.planners.core.tables import select

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# Beyond these nobody has trained.
_MOST_STAGES: Final = 512
_MOST_CP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may be chosen; the default is everything.

    Attributes
    ----------
    tp, pp, cp, ep, micro_batch, accumulation_steps : int or None
        Exactly these; None leaves them open.
    may_shard_in_nodes : bool
        Hierarchical sharding: state shared by the ranks of one node only.
    swaps : bool
        Layers may be swapped in from host memory, by peers that average (``planners.swapping``).
    average_every : int or None
        Steps between two averagings of such peers; None leaves it to the planner.
    """

    max_tp: int = 64
    max_micro_batch: int = 128
    min_tp: int = 1
    min_pp: int = 1
    min_cp: int = 1
    min_ep: int = 1
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    micro_batch: int | None = None
    accumulation_steps: int | None = None
    schedules: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved")
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    may_shard_in_nodes: bool = True
    recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
    offloads: tuple[Offload, ...] = OFFLOADS
    swaps: bool = False
    average_every: int | None = None

    @property
    def fixed(self) -> dict[str, object]:
        """What is not left open, by name."""
        default = SearchSpace()
        names = ("tp", "pp", "cp", "ep", "micro_batch", "accumulation_steps",
                 "zero_stages", "recomputes", "offloads")  # fmt: skip
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(default, n)}


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Return the divisors of a number in rising order, up to a limit.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    top = number if limit is None else min(number, limit)
    return [d for d in range(1, top + 1) if number % d == 0]


def fills_stages(layers: int, pp: int) -> bool:
    """Whether equal stages (but for the last one) leave none empty.

    >>> fills_stages(25, 5), fills_stages(25, 8), fills_stages(9, 8)
    (True, False, False)
    """
    return (pp - 1) * -(-layers // pp) < layers


def degrees(
    shape: Transformer, devices: int, global_batch: int, space: SearchSpace
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield every valid (dp, tp, pp, cp, ep) that uses all devices.

    Valid: heads divide over tp, no pipeline stage is empty, the sequence divides over twice cp
    (zigzag), experts divide over ep, ep divides dp, and dp divides the batch.
    """
    kv_heads = shape.kv_heads or shape.heads
    for tp in divisors(devices, min(space.max_tp, shape.heads)):
        if tp < space.min_tp:
            continue
        if shape.heads % tp or (kv_heads % tp and tp % kv_heads) or space.tp not in (None, tp):
            continue
        for pp in divisors(devices // tp, min(_MOST_STAGES, shape.layers)):
            if pp < space.min_pp:
                continue
            if not fills_stages(shape.layers, pp) or space.pp not in (None, pp):
                continue
            for cp in divisors(devices // tp // pp, _MOST_CP):
                dp = devices // tp // pp // cp
                if global_batch % dp or (cp > 1 and shape.sequence % (2 * cp)):
                    continue
                if space.cp not in (None, cp) or cp < space.min_cp:
                    continue
                for ep in divisors(shape.experts):
                    if dp % ep == 0 and space.ep in (None, ep) and ep >= space.min_ep:
                        yield dp, tp, pp, cp, ep


@lru_cache(maxsize=256)
def splits(shape: Transformer, devices: int, global_batch: int, space: SearchSpace) -> Layouts:
    """Return axis 0, columns of shape (n,): every valid choice of degrees, batch and schedule.

    Kept for the next question: machines with as many devices share it.
    """
    rows = [
        (dp, tp, pp, cp, ep, micro, global_batch // dp // micro, v, holds_all)
        for dp, tp, pp, cp, ep in degrees(shape, devices, global_batch, space)
        for micro in _micro_batches(global_batch // dp, space)
        for v, holds_all in _schedules(shape.layers, pp, global_batch // dp // micro, space)
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 9)
    dp, tp, pp, cp, ep, micro_batch, steps, virtual_stages, holds_all = table.T
    return Layouts(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        micro_batch=micro_batch,
        accumulation_steps=steps,
        virtual_stages=virtual_stages,
        holds_all=holds_all.astype(bool),
        is_sequence_parallel=(tp > 1).astype(np.int64),
        shard_group=dp * cp,
    )


def axis_part(axis: Layouts, rows: slice | Ints) -> Layouts:
    """Return some rows of axis 0, shaped (k, 1, 1)."""
    return select(axis, (rows, None, None))


def _micro_batches(local: int, space: SearchSpace) -> list[int]:
    """Return the micro-batches that divide a rank's samples, as far as they are left open."""
    return [
        micro
        for micro in divisors(local, space.max_micro_batch)
        if space.micro_batch in (None, micro)
        and space.accumulation_steps in (None, local // micro)
    ]


def _schedules(layers: int, pp: int, steps: int, space: SearchSpace) -> list[tuple[int, bool]]:
    """Return (virtual stages, holds all micro-batches) of the schedules that can run."""
    if pp == 1:
        return [(1, False)]
    found = [(1, False)] if "1f1b" in space.schedules else []
    found += [(1, True)] if "gpipe" in space.schedules else []
    if "interleaved" in space.schedules and layers % pp == 0 and steps % pp == 0:
        found += [(v, False) for v in divisors(layers // pp) if v > 1]
    return found


def recomputes(space: SearchSpace) -> dict[str, Ints]:
    """Return axis 1, shaped (1, k, 1): recomputation."""
    codes = np.array([RECOMPUTES.index(r) for r in space.recomputes], dtype=np.int64)
    return {"recompute": codes[None, :, None]}


def shards(space: SearchSpace) -> dict[str, Ints]:
    """Return axis 2, shaped (1, 1, k): ZeRO stage, sharding in nodes, offload.

    Parameters are offloaded with ZeRO-3 only: elsewhere every rank keeps them all.
    """
    rows = []
    for zero in space.zero_stages:
        scopes = (0, 1) if zero and space.may_shard_in_nodes else (0,)
        usable = [o for o in OFFLOADS if o in space.offloads and (zero == 3 or o != "parameters")]
        for scope, chosen in product(scopes, product((0, 1), repeat=len(usable))):
            moved = dict(zip(usable, chosen, strict=True))
            rows.append((zero, scope, *(moved.get(o, 0) for o in OFFLOADS)))
    table = np.array(rows)[None, None, :, :]
    return {
        "zero_stage": table[..., 0],
        "in_node": table[..., 1],
        "offloads_optimizer": table[..., 2],
        "offloads_parameters": table[..., 3],
        "offloads_activations": table[..., 4],
    }


def block(
    part: Layouts,
    recompute: dict[str, Ints],
    shard: dict[str, Ints],
    devices_per_node: int,
) -> tuple[Layouts, Bools]:
    """Return a block of layouts and which of its entries are valid and not repetitions.

    A repetition: sharding over one rank, or a node's share that is all ranks.
    """
    ranks = np.asarray(part.dp * part.cp)
    in_node = np.maximum(np.minimum(devices_per_node // np.asarray(part.tp), ranks), 1)
    group = np.where(shard["in_node"], in_node, ranks)
    moved = {name: column for name, column in shard.items() if name != "in_node"}
    layouts = replace(part, **recompute, **moved, shard_group=group)
    is_sharded = (shard["zero_stage"] == 0) | (group > 1)
    is_hierarchical = (shard["in_node"] == 0) | ((group < ranks) & (ranks % group == 0))
    return layouts, is_sharded & is_hierarchical


def layout_at(layouts: Layouts, index: tuple[int, ...], shape: tuple[int, ...]) -> Layout:
    """Return one entry of a block as a layout."""

    def at(name: str) -> int:
        return int(np.broadcast_to(getattr(layouts, name), shape)[index])

    v, pp = at("virtual_stages"), at("pp")
    schedule: Schedule = "1f1b"
    if v > 1:
        schedule = "interleaved"
    elif at("holds_all") and pp > 1:
        schedule = "gpipe"
    ranks, group, zero = at("dp") * at("cp"), at("shard_group"), at("zero_stage")
    same = ("dp", "tp", "cp", "ep", "micro_batch", "accumulation_steps")
    return Layout(
        **{name: at(name) for name in same},
        pp=pp,
        virtual_stages=v,
        schedule=schedule,
        zero_stage=zero,
        recompute=RECOMPUTES[at("recompute")],
        is_sequence_parallel=bool(at("is_sequence_parallel")),
        shard_group=group if zero and group < ranks else None,
        offload=frozenset(o for o in OFFLOADS if at(f"offloads_{o}")),
    )
