"""Training a model larger than the GPU on every peer, layers swapped from host memory (ATOM).

Layers are cut into pieces, by sums over every piece and the fastest of all cuts, and loaded from
host memory one piece at a time, for slow networks.

| here                    | ATOM | meaning                                                        |
|-------------------------|------|----------------------------------------------------------------|
| ``forward_s``           | c_j  | forward of a layer (then: a piece) for one micro-batch [s]     |
| ``parameter_bytes``     | s_j  | what is loaded for a layer (piece) [bytes]                     |
| ``host_bytes_per_s``    | beta | host to GPU, and back                                          |
| ``accumulation_steps``  | A    | micro-batches that a loaded piece computes before it leaves    |
| ``BACKWARD``            | -    | backward with recomputed forward: 3 forwards                   |
| ``kappa``               | -    | slowdown of computing while loading                            |
| ``average_every``       | K    | steps between two averagings of the peers                      |

Every peer runs the whole model piece by piece: one stream computes a piece, the other loads the
next. Loads hide where A micro-batches of a piece take longer than loading its neighbour.

forward  = l_0 + sum_j max(A c_j, l_{j+1})
backward = sum_j max(3 A c_j, l_{j-1} + w_j), the last piece still being there (w: gradients home)

update   = host state (weights, gradients, moments) read and written once by the host's processors

Peers average decentrally: nobody waits for a neighbour's activations, and a slow network carries
2 P (n-1)/n bytes every K steps (an all-reduce of the weights over n peers) instead of activations
every micro-batch. Nothing hides the averaging. K > 1 is local SGD with K steps: the steps that it
needs beyond synchronous SGD's are not modelled here.

Source: ATOM (arXiv 2403.10504, abstract and reviews; neither its code nor its K was seen). Figures
are directions: published is "up to 20x" over decentralised pipelines on slow networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core import (
    GIB,
    Floats,
    PlanningError,
    check_counts,
    check_not_negative,
    check_positive,
    impossible,
    refused,
)
from advisor.planners.memory import Ledger, without_terms


def spans(values: Sequence[float]) -> Floats:
    """Return sums over the layers [a, b) of every two edges a < b, inf elsewhere; (L+1, L+1)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    difference: Floats = total[None, :] - total[:, None]
    edge = np.arange(total.size)
    difference[edge[:, None] >= edge[None, :]] = np.inf
    return difference


def best_cuts(start: Floats, cost: Floats, work: Floats) -> list[int] | None:
    """Return the edges 0 = e_0 < e_1 < ... = L of the fastest cut; None where none is allowed.

    ``start``: (L+1,); what a first piece [0, b) takes before the second one; inf where it does not
    fit; ``cost``: (L+1, L+1, L+1); what a piece [b, c) behind [a, b) adds; ``work``: (L+1, L+1);
    what a last piece [b, L) adds.
    """
    edges = start.size
    least = np.full((edges, edges), np.inf)  # by the last piece [b, c)
    least[0] = start
    origin = np.zeros((edges, edges), np.int64)
    for b in range(1, edges):
        reached = least[:b, b, None] + cost[:b, b, :]  # (a, c)
        origin[b] = np.argmin(reached, axis=0)
        least[b] = np.min(reached, axis=0)
    total = least[:-1, -1] + work[:-1, -1]
    if not np.isfinite(total).any():
        return None
    b, c = int(np.argmin(total)), edges - 1
    found = [c]
    while b:
        found.append(b)
        b, c = int(origin[b, c]), b
    return [0, *found[::-1]]


BACKWARD: Final = 3.0  # recomputed forward + 2 forwards' worth of gradients
# Host to GPU over PCIe 3 x16 as measured: SwitchFlow's table of moved models, 12.7 GiB/s.
PCIE3_BYTES_PER_S: Final = 12.7 * GIB
# K where nobody gives one: the default of Hugging Face Accelerate's local-SGD example
# (examples/by_feature/local_sgd.py). DiLoCo (arXiv 2311.08105) takes 500, with an outer optimizer.
AVERAGE_EVERY: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapModel:
    """Layers in forward order, per micro-batch."""

    # forward_s, parameter_bytes, boundary_bytes, saved_bytes: per layer: forward time [s], weights
    # [bytes], activation handed on [bytes], activations kept while the layer's piece is trained
    # [bytes]
    forward_s: tuple[float, ...]
    parameter_bytes: tuple[float, ...]
    boundary_bytes: tuple[float, ...]
    saved_bytes: tuple[float, ...]
    micro_batch: int = 1  # samples of a micro-batch
    # what host memory keeps for each byte of weights: 8 for fp16 weights with fp32 master,
    # gradient and Adam's two moments (16 bytes a parameter)
    host_bytes_per_parameter_byte: float = 8.0

    def __post_init__(self) -> None:
        columns = ("forward_s", "parameter_bytes", "boundary_bytes", "saved_bytes")
        if len({len(getattr(self, name)) for name in columns}) != 1 or not self.forward_s:
            raise refused(
                "a model to swap needs as many values in every column as it has layers",
                "give at least one layer",
            )
        check_not_negative("model to swap", **{name: getattr(self, name) for name in columns})
        check_counts("model to swap", micro_batch=self.micro_batch)
        check_not_negative("model to swap", host_bytes=self.host_bytes_per_parameter_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One machine with one GPU.

    ``kappa`` is the slowdown of computing while loading: near 0 where the GPU copies by itself,
    about 0.3 measured where the CPU computes and loads. ``host_update_bytes_per_s`` is the rate at
    which the processors update the optimizer's state; its default is the prior of
    ``planners.core.layout_case``.
    """

    gpu_bytes: float
    memory_bytes: float
    host_bytes_per_s: float = PCIE3_BYTES_PER_S
    host_update_bytes_per_s: float = 20e9
    network_bytes_per_s: float
    network_latency_s: float = 0.0
    kappa: float = 0.0

    def __post_init__(self) -> None:
        rates = ("host_bytes_per_s", "host_update_bytes_per_s", "network_bytes_per_s")
        check_positive("peer", **{name: getattr(self, name) for name in rates})
        # Whatever else a job keeps there may leave no memory at all.
        others = ("gpu_bytes", "memory_bytes", "network_latency_s", "kappa")
        check_not_negative("peer", **{name: getattr(self, name) for name in others})


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """Pieces and times of one peer's step, and what the peers do together."""

    layers: tuple[int, ...]
    accumulation_steps: int
    # a*: micro-batches with which every load would hide behind its neighbour's forward
    accumulation_to_hide: int
    average_every: int
    # forward_s, backward_s, update_s, sync_s: ``sync_s`` is the averaging's share of one step: a
    # K-th of it [s]
    forward_s: float
    backward_s: float
    update_s: float
    sync_s: float
    step_s: float
    throughput_samples_per_s: float
    exposed_fraction: float  # share of the step spent waiting for loads
    # gpu_ledger, host_bytes: needed on each peer; the first by term, where most is there [bytes]
    gpu_ledger: Ledger
    host_bytes: float

    @property
    def gpu_bytes(self) -> float:
        """Needed on each peer's GPU [bytes]."""
        return float(without_terms(self.gpu_ledger))

    @property
    def synchronous_step_s(self) -> float:
        """The step were the peers to average after each: K = 1 [s]."""
        return self.step_s + (self.average_every - 1) * self.sync_s


def plan_atom(
    model: SwapModel, peer: Peer, *, peers: int, accumulation_steps: int,
    average_every: int = AVERAGE_EVERY,
) -> SwapPlan:  # fmt: skip
    """Cut a model into pieces so that a peer's step is shortest, within GPU and host memory.

    Exact over all cuts: a dynamic programme over two neighbouring pieces, O(L^3).

    Raises PlanningError if no cut fits into the GPU, or the model does not fit into host memory.
    """
    if min(peers, accumulation_steps, average_every) < 1:
        raise PlanningError("peers, accumulation steps and averaging interval must be at least 1")
    a = float(accumulation_steps)
    compute, size, saved = (
        spans(x) for x in (model.forward_s, model.parameter_bytes, model.saved_bytes)
    )
    load = size / peer.host_bytes_per_s
    _require_host(model, peer, a)
    # Cuts (a, b) and (b, c): both pieces lie in the GPU at once, the second one at work.
    together = size[:, :, None] + size[None, :, :] + (saved + size)[None, :, :]
    allowed = together <= peer.gpu_bytes
    first_fits = 2 * size[0] + saved[0] <= peer.gpu_bytes
    work = a * compute * (1 + peer.kappa)
    window = np.maximum(work[:, :, None], load[None, :, :]) + np.maximum(
        BACKWARD * work[None, :, :], load[:, :, None] + load[None, :, :]
    )
    cost = np.where(allowed, window, np.inf)
    start = np.where(first_fits, load[0] + np.maximum(BACKWARD * work[0], load[0]), np.inf)
    edges = best_cuts(start, cost, work)
    if edges is None:
        heaviest = int(np.argmax(np.asarray(model.parameter_bytes)))
        need = 2 * model.parameter_bytes[heaviest] + model.saved_bytes[heaviest]
        raise impossible(
            f"no cut fits into a GPU of {peer.gpu_bytes / GIB:.1f} GiB: layer {heaviest} with its "
            f"gradients and activations takes {need / GIB:.1f} GiB, and its neighbour must be "
            "loaded beside it",
            "lower the micro-batch or use a larger GPU",
        )
    return _describe(model, peer, edges, peers, accumulation_steps, average_every)


def _require_host(model: SwapModel, peer: Peer, accumulation: float) -> None:
    # One boundary activation a micro-batch is the least any cut keeps.
    need = model.host_bytes_per_parameter_byte * sum(model.parameter_bytes)
    need += accumulation * min(model.boundary_bytes[:-1], default=0.0)
    if need > peer.memory_bytes:
        raise impossible(
            f"weights and optimizer state need {need / GIB:.0f} GiB of host memory, the peer has "
            f"{peer.memory_bytes / GIB:.0f} GiB",
            "add memory, or train a smaller model; every peer keeps the whole model",
        )


def _describe(
    model: SwapModel, peer: Peer, edges: list[int], peers: int, accumulation_steps: int,
    average_every: int,
) -> SwapPlan:  # fmt: skip
    a = accumulation_steps
    pieces = list(pairwise(edges))
    compute = np.array([sum(model.forward_s[i:j]) for i, j in pieces])
    size = np.array([sum(model.parameter_bytes[i:j]) for i, j in pieces])
    saved = np.array([sum(model.saved_bytes[i:j]) for i, j in pieces])
    forward_s, backward_s = step_parts(compute, size, a, peer)
    sync_s = averaging_s(float(size.sum()), peer, peers=peers) / average_every
    state, update_s = _update(model, peer)
    step_s = forward_s + backward_s + update_s + sync_s
    computing = (1 + BACKWARD) * a * float(compute.sum()) * (1 + peer.kappa)
    before = np.concatenate([[0.0], size[:-1]])
    full = int(np.argmax(before + 2 * size + saved))
    load = size[1:] / peer.host_bytes_per_s
    hide = float((load / compute[:-1]).max()) if load.size else 0.0
    return SwapPlan(
        layers=tuple(j - i for i, j in pieces),
        accumulation_steps=a,
        accumulation_to_hide=max(1, math.ceil(hide)),
        average_every=average_every,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
        sync_s=sync_s,
        step_s=step_s,
        throughput_samples_per_s=peers * a * model.micro_batch / step_s,
        exposed_fraction=1 - computing / (forward_s + backward_s),
        gpu_ledger={
            "gathered": before[full] + size[full],
            "gradients": size[full],
            "activations": saved[full],
        },
        host_bytes=state + a * sum(model.boundary_bytes[j - 1] for _, j in pieces[:-1]),
    )


def _update(model: SwapModel, peer: Peer) -> tuple[float, float]:
    """Return the state in host memory [bytes], and what updating it takes [s]."""
    state = model.host_bytes_per_parameter_byte * sum(model.parameter_bytes)
    return state, state / peer.host_update_bytes_per_s


def least_swapped_step_s(
    model: SwapModel, peer: Peer, *, peers: int, accumulation_steps: int, average_every: int
) -> float:
    """Return a bound from below on ``plan``'s step: as if every load were hidden [s].

    inf where the model does not fit into host memory. The parameters are those of ``plan``.
    """
    try:
        _require_host(model, peer, float(accumulation_steps))
    except PlanningError:
        return math.inf
    work = accumulation_steps * sum(model.forward_s) * (1 + peer.kappa)
    averaged = averaging_s(sum(model.parameter_bytes), peer, peers=peers) / average_every
    return (1 + BACKWARD) * work + _update(model, peer)[1] + averaged


def averaging_s(weight_bytes: float, peer: Peer, *, peers: int) -> float:
    """Return one averaging of the weights over all peers, 2 P (n-1)/n bytes of each [s]."""
    if peers < 2:
        return 0.0
    sent = 2 * weight_bytes * (peers - 1) / peers
    return sent / peer.network_bytes_per_s + peer.network_latency_s


def step_parts(
    compute_s: ArrayLike, size_bytes: ArrayLike, accumulation_steps: int, peer: Peer
) -> tuple[float, float]:
    """Return forward and backward of one step over pieces (section 11.3) [s].

    ``compute_s``, ``size_bytes``: (pieces,); forward of one micro-batch; weights.
    """
    work = accumulation_steps * np.asarray(compute_s, float) * (1 + peer.kappa)
    load = np.asarray(size_bytes, float) / peer.host_bytes_per_s
    after, before = np.append(load[1:], 0.0), np.append(0.0, load[:-1])
    forward = load[0] + np.maximum(work, after).sum()
    backward = np.maximum(BACKWARD * work, before + load).sum()
    return float(forward), float(backward)
