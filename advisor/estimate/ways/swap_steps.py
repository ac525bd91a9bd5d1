"""Peers that swap layers: the fastest micro-batch of a model on equal or unlike GPUs (ATOM).

What ``plan`` shows of a cluster and what every row of machines may be trained in
(``estimate.ways.swapping``) is found here, so that both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from advisor.answer import Bottleneck
from advisor.errors import CatalogueError
from advisor.estimate.case import StepCase
from advisor.estimate.knowledge.laws import ModelOn, model_at
from advisor.estimate.unlike.places import Place
from advisor.estimate.ways.recorded_units import node_of
from advisor.machines import ClusterGroup, host_process_bytes
from advisor.planners.core import GIB, PlanningError
from advisor.planners.layouts import SearchSpace
from advisor.planners.memory import Ledger, base_ledger, offloaded_bytes
from advisor.planners.systems import (
    AVERAGE_EVERY,
    Peer,
    SwapModel,
    SwapPlan,
    least_swapped_step_s,
    plan_atom,
)

_MOST_MICRO_BATCH: Final = 64
# What a swapping peer does in terms of a layout: nothing else fits that.
_OFFLOADS: Final = frozenset({"optimizer", "parameters"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapQuestion:
    """What a step of swapping peers is asked for."""

    peers: int  # GPUs, each of which trains the whole model
    global_batch: int  # samples of a step over all of them
    average_every: int  # steps between two averagings (K)
    space: SearchSpace  # what a layout may be

    def micro_batches(self) -> Iterator[tuple[int, int]]:
        """Yield micro-batches and how many of them a step of one peer has."""
        local, space = -(-self.global_batch // self.peers), self.space
        most = min(local, _MOST_MICRO_BATCH, space.max_micro_batch)
        tried = [2**k for k in range(int(math.log2(most)) + 1)]
        if space.micro_batch is not None:
            tried = [space.micro_batch] if local % space.micro_batch == 0 else []
        for u in tried:
            steps = -(-local // u)
            if space.accumulation_steps in (None, steps):
                yield u, steps


@dataclass(frozen=True, kw_only=True)
class PeersOn:
    """A model's layers on the GPUs of one kind of machine, each a peer."""

    model: ModelOn
    place: Place  # one of the model's

    @property
    def devices(self) -> int:
        """GPUs of one machine."""
        return self.place.group.node.devices

    def asked(self, peers: int, space: SearchSpace) -> SwapQuestion:
        """Return the question of so many peers."""
        return SwapQuestion(
            peers=peers, global_batch=self.place.case.job.global_batch, space=space,
            average_every=space.average_every or AVERAGE_EVERY,
        )  # fmt: skip

    def layers(self, micro_batch: int) -> SwapModel:
        """Return the model's units on one GPU, as pieces that can be loaded alone.

        Made once for a kind of GPU, whatever machine it is in.
        """
        key = ("swapped layers", self.place.group.node.device, micro_batch)
        return self.place.case.once(key, lambda: self._made(micro_batch))

    def _made(self, micro_batch: int) -> SwapModel:
        model = self.model
        forward, _ = model.times(self.place.group).at(float(micro_batch))
        loaded = model.weight_bytes * model.table.parameters
        on_host = offloaded_bytes(
            model.work, model.table, tp=1, dp=1, zero_stage=0, offload=_OFFLOADS
        )
        weights = float(loaded.sum())
        return SwapModel(
            forward_s=tuple(forward.tolist()),
            parameter_bytes=tuple(loaded.tolist()),
            boundary_bytes=tuple((micro_batch * model.table.output_bytes).tolist()),
            saved_bytes=tuple(model.kept_bytes(micro_batch).tolist()),
            micro_batch=micro_batch,
            host_bytes_per_parameter_byte=on_host / weights if weights else 0.0,
        )

    def peer(self, micro_batch: int, peers: int) -> Peer:
        """Return one of so many GPUs with its share of the machine's memory and processors.

        They average over the machine's network, of which each has its share; within one machine
        over the links between its GPUs.
        """
        model, group, case = self.model, self.place.group, self.place.case
        node, update = group.node, case.constants.layout.parameters.host_update_bytes_per_s
        room, is_alone = node.memory_bytes / node.devices, peers <= node.devices
        link, sharers = (node.intra, 1) if is_alone else (node.network, node.devices)
        return Peer(
            gpu_bytes=max(model.room_bytes(group) - model.base_bytes(micro_batch), 0.0),
            memory_bytes=max(room - host_process_bytes(case.job, case.work), 0.0),
            host_bytes_per_s=node.host.bytes_per_s if node.host else group.part.host_bytes_per_s,
            host_update_bytes_per_s=update / node.devices,
            network_bytes_per_s=link.bytes_per_s / sharers,
            network_latency_s=link.latency_s,
        )

    def least_s(self, asked: SwapQuestion, micro_batch: int, steps: int) -> float:
        """Return a bound from below on the step at one micro-batch; inf where none is [s]."""
        return least_swapped_step_s(
            self.layers(micro_batch), self.peer(micro_batch, asked.peers), peers=asked.peers,
            accumulation_steps=steps, average_every=asked.average_every,
        )  # fmt: skip

    def planned(self, asked: SwapQuestion, micro_batch: int, steps: int) -> SwapPlan:
        """Return the best cut into pieces at one micro-batch.

        Raises PlanningError if the model does not fit into host memory, or no layer into the GPU.
        """
        peer = self.peer(micro_batch, asked.peers)
        found = plan_atom(
            self.layers(micro_batch), peer, peers=asked.peers, accumulation_steps=steps,
            average_every=asked.average_every,
        )  # fmt: skip
        if found.host_bytes > peer.memory_bytes:
            raise PlanningError(
                f"state and the activations between pieces need {found.host_bytes / GIB:.0f} GiB "
                f"of host memory, the peer has {peer.memory_bytes / GIB:.0f} GiB",
                hint="add memory, or lower the batch",
                exit_code=3,
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStep:
    """The step of all peers, ruled by the slowest of them."""

    on: PeersOn
    model: SwapModel
    plan: SwapPlan  # its step, before loading data
    waiting_s: float  # what loading data adds [s]

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.plan.step_s + self.waiting_s

    @property
    def ledger(self) -> Ledger:
        """What the GPU holds, by term [bytes]."""
        model, pieces = self.on.model, self.plan.gpu_ledger
        kept = pieces["activations"] / model.memory.slack
        base = base_ledger(model.work, self.model.micro_batch, model.memory, kept=kept)
        return {**pieces, **base}

    @property
    def parts_s(self) -> dict[Bottleneck, float]:
        """What the step waits for; the parts add up to it [s]."""
        plan = self.plan
        exposed = plan.exposed_fraction * (plan.forward_s + plan.backward_s)
        return {
            "compute": plan.forward_s + plan.backward_s - exposed,
            "offload": exposed + plan.update_s,
            "network": plan.sync_s,
            "input": self.waiting_s,
        }

    @property
    def log_sd(self) -> float:
        """One standard deviation of ln(error): of the layers, and of the averaging's links."""
        case, network = self.on.place.case, self.parts_s["network"] / self.step_s
        of_links = network * case.constants.scaling.log_sd_communication
        return self.on.model.log_sd([self.on.place.group], of_links)


def least_step_s(kinds: Sequence[PeersOn], asked: SwapQuestion) -> float:
    """Return a bound from below on ``swap_step``; inf where nothing can be asked for [s]."""
    if impossible(asked):
        return math.inf
    bounds = (
        max(on.least_s(asked, u, steps) for on in kinds) for u, steps in asked.micro_batches()
    )
    return min(bounds, default=math.inf)


def swap_step(
    kinds: Sequence[PeersOn], asked: SwapQuestion, *, below_s: float = math.inf
) -> SwapStep | None:
    """Return the fastest step of peers that swap layers; None where none is below ``below_s``.

    ``kinds``: every kind of GPU among the peers; the slowest rules the step; ``below_s``: only
    what is faster matters [s].

    Raises PlanningError if the model does not fit into host memory, no layer into a GPU, or a peer
    has no sample; not where a bound alone says that no step is below ``below_s``.
    """
    if why := impossible(asked):
        raise why
    best: SwapStep | None = None
    problem: PlanningError | None = None
    for u, steps in asked.micro_batches():
        least = max(on.least_s(asked, u, steps) for on in kinds)
        if math.isfinite(least) and least >= below_s:
            continue
        try:
            found = max((_step(on, asked, u, steps) for on in kinds), key=lambda one: one.step_s)
        except PlanningError as error:
            problem = error
            break  # a larger micro-batch needs more memory still
        if found.step_s < below_s:
            best, below_s = found, found.step_s
    if best is None and problem is not None:
        raise problem
    return best


def _step(on: PeersOn, asked: SwapQuestion, micro_batch: int, steps: int) -> SwapStep:
    plan, place = on.planned(asked, micro_batch, steps), on.place
    samples, row = np.array([float(micro_batch * steps)]), np.array([place.row])
    waiting = place.case.waiting_s(np.array([plan.step_s]), samples, row)
    return SwapStep(on=on, model=on.layers(micro_batch), plan=plan, waiting_s=float(waiting[0]))


def impossible(asked: SwapQuestion) -> PlanningError | None:
    """Return why peers have no step: one has no sample, or the layout is fixed otherwise.

    Swapping peers recompute, and keep all on the host.
    """
    space = asked.space
    if asked.peers > asked.global_batch:
        return PlanningError(
            f"a global batch of {asked.global_batch} gives {asked.peers} GPUs less than one "
            "sample each",
            hint="raise the batch or use fewer GPUs",
            exit_code=3,
        )
    is_alone = {space.tp, space.pp, space.cp, space.ep} <= {None, 1}
    is_alone &= max(space.min_tp, space.min_pp, space.min_cp, space.min_ep) <= 1
    recomputes = 0 in space.zero_stages and "full" in space.recomputes
    is_usual = space.moves is None and not space.updates_in_backward
    if is_alone and recomputes and is_usual and set(space.offloads) >= _OFFLOADS:
        return None
    return PlanningError(
        "a layout with these degrees, ZeRO stages or recomputation swaps no layers",
        hint="leave them open: every GPU trains the whole model, recomputing it, with weights and "
        "optimizer state on the host",
        exit_code=3,
    )


def peers_on(case: StepCase, row: int) -> PeersOn | None:
    """Return the model on the GPUs of a type; None where little is known of them."""
    device = case.fleet.devices[case.fleet.device[row]]
    known = case.accelerators.get(device.name.partition("/")[0])
    if known is None:
        return None
    try:
        node, card = node_of(case.fleet, row, case.accelerators), known.laid_out()
    except CatalogueError:
        return None
    group = ClusterGroup(label=node.name, node=node, part=card, count=1)
    place = Place(group=group, case=case, row=row)
    return PeersOn(model=model_at(case, (place,)), place=place)
