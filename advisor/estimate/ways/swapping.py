"""Peers that swap layers: the fastest micro-batch of a model on equal or unlike GPUs (ATOM).

What ``plan`` shows of a cluster (``estimate.ways.swapping``) and what every row of machines may be
trained in (``estimate.ways.swapping``) is found here, so that both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Bottleneck
from advisor.ask import LayoutRequest
from advisor.catalogue import Accelerator
from advisor.errors import CatalogueError, UsageError
from advisor.estimate.case import StepCase
from advisor.estimate.knowledge.laws import ModelOn, model_at
from advisor.estimate.plan import Choice
from advisor.estimate.time_columns import (
    CODE,
    WAITS,
    TimeColumns,
    integer_layouts,
    shares_of,
    way_code,
)
from advisor.estimate.unlike.groups import OnGroups
from advisor.estimate.unlike.places import Place, is_extrapolating
from advisor.estimate.ways.model_parallel import machine_key
from advisor.estimate.ways.recorded_units import node_of
from advisor.machines import (
    Cluster,
    ClusterGroup,
    assumed_network_log_sd,
    host_fits,
    host_process_bytes,
)
from advisor.planners.core import GIB, RECOMPUTES, PlanningError, put, select
from advisor.planners.layouts import SearchSpace
from advisor.planners.memory import offloaded_bytes
from advisor.planners.systems import (
    AVERAGE_EVERY,
    Peer,
    SwapModel,
    SwapPlan,
    least_swapped_step_s,
    pipeline_rival_s,
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

    def layers(self, micro_batch: int) -> SwapModel:
        """Return the model's units on one GPU, as pieces that can be loaded alone.

        Made once for a kind of GPU, whatever machine it is in.
        """
        seen = self.place.case.seen
        key = ("swapped layers", self.place.group.node.device, micro_batch)
        if key not in seen:
            seen[key] = self._made(micro_batch)
        found: SwapModel = seen[key]
        return found

    def _made(self, micro_batch: int) -> SwapModel:
        model = self.model
        forward, _ = model.times(self.place.group).at(float(micro_batch))
        loaded = model.weight_bytes * model.table.parameters
        on_host = offloaded_bytes(
            model.work, model.table, tp=1, dp=1, zero_stage=0, offload=_OFFLOADS
        )
        weights = float(loaded.sum())
        return SwapModel(
            forward_s=_numbers(forward),
            parameter_bytes=_numbers(loaded),
            boundary_bytes=_numbers(micro_batch * model.table.output_bytes),
            saved_bytes=_numbers(model.kept_bytes(micro_batch)),
            micro_batch=micro_batch,
            host_bytes_per_parameter_byte=on_host / weights if weights else 0.0,
        )

    def peer(self, micro_batch: int) -> Peer:
        """Return one GPU with its share of the machine's memory, processors and network."""
        model, group, case = self.model, self.place.group, self.place.case
        node, update = group.node, case.constants.layout.parameters.host_update_bytes_per_s
        room = node.memory_bytes / node.devices
        return Peer(
            gpu_bytes=max(model.room_bytes(group) - model.base_bytes(micro_batch), 0.0),
            memory_bytes=max(room - host_process_bytes(case.job, case.work), 0.0),
            host_bytes_per_s=node.host.bytes_per_s if node.host else group.part.host_bytes_per_s,
            host_update_bytes_per_s=update / node.devices,
            network_bytes_per_s=node.network.bytes_per_s / node.devices,
            network_latency_s=node.network.latency_s,
        )

    def least_s(self, asked: SwapQuestion, micro_batch: int, steps: int) -> float:
        """Return a bound from below on the step at one micro-batch; inf where none is [s]."""
        return least_swapped_step_s(
            self.layers(micro_batch), self.peer(micro_batch), peers=asked.peers,
            accumulation_steps=steps, average_every=asked.average_every,
        )  # fmt: skip

    def planned(self, asked: SwapQuestion, micro_batch: int, steps: int) -> SwapPlan:
        """Return the best cut into pieces at one micro-batch.

        Raises PlanningError if the model does not fit into host memory, or no layer into the GPU.
        """
        peer = self.peer(micro_batch)
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
    def memory_bytes(self) -> float:
        """Needed on the GPU. [bytes]."""
        return self.plan.gpu_bytes + self.on.model.base_bytes(self.model.micro_batch)

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


def refused(space: SearchSpace) -> bool:
    """Whether a fixed layout leaves swapping out: it recomputes, and keeps all on the host."""
    ranks = (space.tp, space.pp, space.cp, space.ep)
    least = (space.min_tp, space.min_pp, space.min_cp, space.min_ep)
    return (
        any(degree not in (None, 1) for degree in ranks)
        or max(least) > 1
        or 0 not in space.zero_stages
        or "full" not in space.recomputes
        or not set(space.offloads) >= _OFFLOADS
    )


def least_step_s(kinds: Sequence[PeersOn], asked: SwapQuestion) -> float:
    """Return a bound from below on ``swap_step``; inf where nothing can be asked for [s]."""
    if not is_possible(asked):
        return math.inf
    bounds = (
        max(on.least_s(asked, u, steps) for on in kinds) for u, steps in asked.micro_batches()
    )
    return min(bounds, default=math.inf)


def is_possible(asked: SwapQuestion) -> bool:
    """Whether every peer has a sample, and the layout is not fixed otherwise."""
    return asked.peers <= asked.global_batch and not refused(asked.space)


def swap_step(
    kinds: Sequence[PeersOn], asked: SwapQuestion, *, below_s: float = math.inf
) -> SwapStep | None:
    """Return the fastest step of peers that swap layers; None where none is below ``below_s``.

    ``kinds``: every kind of GPU among the peers; the slowest rules the step; ``below_s``: only
    what is faster matters [s].

    Raises PlanningError if the model does not fit into host memory, no layer into a GPU, or a peer
    has no sample; not where a bound alone says that no step is below ``below_s``.
    """
    if not is_possible(asked):
        raise _impossible(asked)
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


def _impossible(asked: SwapQuestion) -> PlanningError:
    if asked.peers > asked.global_batch:
        return PlanningError(
            f"a global batch of {asked.global_batch} gives {asked.peers} GPUs less than one "
            "sample each",
            hint="raise the batch or use fewer GPUs",
            exit_code=3,
        )
    return PlanningError(
        "a layout with these degrees, ZeRO stages or recomputation swaps no layers",
        hint="leave them open: every GPU trains the whole model, recomputing it, with weights and "
        "optimizer state on the host",
        exit_code=3,
    )


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


# Layer swapping (ATOM): every GPU trains the whole model, its layers loaded from host memory.
#
# The peers average their weights every K steps, so that a slow network is met once in K steps and
# not at every micro-batch. Between two averagings each peer takes K steps of its own: local SGD
# (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019). What K costs in steps to
# the same loss is **not** modelled; K = 1 is synchronous SGD, as in every other layout.


NAME: Final = "layer swapping"
UNRELEASED: Final = "no released framework swaps layers this way (ATOM's code is not published)"


def is_compared(cluster: Cluster, wanted: bool | None) -> bool:
    """Whether swapping stands beside the layouts: where asked for, or on consumer cards.

    ATOM was made for these: no NVLink, machines joined by Ethernet.
    """
    if wanted is not None:
        return wanted
    return all(g.part.is_consumer for g in cluster)


def or_swap(problem: PlanningError, swapped: Sequence[Choice]) -> PlanningError:
    """Return the error, its hint naming swapping where that would train the model."""
    if not swapped:
        return problem
    step_s = swapped[0].step_time_s.value
    return PlanningError(
        str(problem),
        hint=f"{problem.hint}; swapping its layers (ATOM) would take {step_s:.3g} s a step",
        exit_code=problem.exit_code,
    )


def layer_swapping(case: OnGroups, *, average_every: int | None = None) -> Choice:
    """Plan layer swapping on every GPU of a cluster, each of them a peer.

    ``case``: the slowest of its groups rules the step; ``average_every``: steps between two
    averagings of the peers' weights (K); 1 is synchronous SGD; None:
    ``planners.systems.atom.AVERAGE_EVERY``.

    Raises UsageError if ``average_every`` is below 1. Raises PlanningError if the model does not
    fit into host memory, or no layer into a GPU.
    """
    every = AVERAGE_EVERY if average_every is None else average_every
    if every < 1:
        raise UsageError(
            f"--average-every {every} is out of range",
            hint="1 averages after every step, 8 after every eighth",
        )
    kinds = [PeersOn(model=case.model, place=place) for place in case.model.places]
    asked = SwapQuestion(
        peers=case.devices,
        global_batch=case.global_batch,
        average_every=every,
        space=kinds[0].place.case.space,
    )
    found = swap_step(kinds, asked)
    if found is None:
        raise PlanningError(
            "no micro-batch of the size asked for gives every GPU the same whole number of them",
            hint="leave --micro-batch and --accumulate open",
            exit_code=3,
        )
    return _described(case, found)


def _described(case: OnGroups, found: SwapStep) -> Choice:
    plan, u = found.plan, found.model.micro_batch
    rival_s = pipeline_rival_s(
        found.model, found.on.peer(u), peers=case.devices, micro_batches=-(-case.global_batch // u)
    )
    gain = rival_s / found.step_s
    return case.choice(
        NAME,
        found.step_s,
        _log_sd(case, found),
        memory_bytes={found.on.place.group.label: found.memory_bytes},
        parts_s={str(name): part for name, part in found.parts_s.items()},
        details={
            "layers_by_piece": list(plan.layers),
            "micro_batch": u,
            "accumulation_steps": plan.accumulation_steps,
            "accumulation_to_hide": plan.accumulation_to_hide,
            "exposed_fraction": plan.exposed_fraction,
            "average_every": plan.average_every,
            "averaging_s": plan.sync_s,
            "host_update_s": plan.update_s,
            "loading_s": found.waiting_s,
            "synchronous_step_s": plan.synchronous_step_s + found.waiting_s,
            "host_gib": plan.host_bytes / GIB,
            "pipeline_step_s": rival_s,
            "gain_over_pipeline": gain,
        },
        notes=(
            f"{gain:.2f} x the throughput of an even pipeline over the same network "
            f"({rival_s:.3g} s a step)",
            *averaging_notes(plan.average_every, plan.sync_s),
            *_synchronous(plan),
            UNRELEASED,
        ),
    )


def _log_sd(case: OnGroups, found: SwapStep) -> float:
    """Return one standard deviation of ln(error), an assumed network between machines included."""
    place, network_s = found.on.place, found.parts_s["network"]
    added = assumed_network_log_sd(
        place.case.fleet, np.array([place.row]), np.array([case.nodes]),
        np.array([network_s / found.step_s]),
    )  # fmt: skip
    return float(np.hypot(found.log_sd, added[0]))


def averaging_notes(average_every: int, averaging_s: float) -> tuple[str, ...]:
    """Return what a reader must know of the averaging interval.

    ``average_every``: steps between two averagings; ``averaging_s``: of it in one step; 0 on a
    single GPU [s].
    """
    if averaging_s == 0:
        return ()
    if average_every == 1:
        return ("every GPU averages with the others after each step: synchronous SGD",)
    return (
        f"every GPU averages with the others every {average_every} steps: local SGD, not the "
        "synchronous SGD of the other layouts; the extra steps that it may need are not modelled",
    )


def _synchronous(plan: SwapPlan) -> tuple[str, ...]:
    if plan.sync_s == 0 or plan.average_every == 1:
        return ()
    return (f"{plan.synchronous_step_s:.3g} s a step with --average-every 1",)


# Layer swapping as columns: every row of machines that is faster with it, or fits only so (ATOM).
#
# Asked for only (``SearchSpace.swaps``): no released framework swaps layers, and peers that
# average every K steps do local SGD, whose extra steps are not modelled. The step is that of
# ``estimate.ways.swapping``, as ``plan`` shows it of a cluster.


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SWAPPING: Final = way_code(NAME)
# Rows that other ways leave without an answer, and that peers with the whole model each may have.
_OPEN: Final = ("ok", "does_not_fit_in_memory", "excluded_by_layout", "batch_does_not_divide")
# Sums in another order differ in the last digits.
_EXACT: Final = 1.0 - 1e-9


def with_swapping(case: StepCase, columns: TimeColumns) -> TimeColumns:
    """Return columns with layer swapping where it is faster, or the only way that fits.

    ``columns``: the best of the other ways.
    """
    rows, found = [], []
    for row in np.flatnonzero(_is_open(case, columns)).tolist():
        below_s = float(columns.step_s[row]) if columns.status[row] == 0 else math.inf
        step = _swapped(case, int(columns.type_index[row]), int(columns.count[row]), below_s)
        if step is not None:
            rows.append(row)
            found.append(step)
    if not rows:
        return columns
    at = np.array(rows)
    return put(columns, at, _columns(case, select(columns, at), found))


def could_swap(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows for which swapping may be faster than what is known, or fit at all."""
    is_open = _is_open(case, columns)
    rows = np.flatnonzero(is_open)
    known_s = np.where(columns.status == 0, np.nan_to_num(columns.step_s, nan=np.inf), np.inf)
    least_s = least_swap_s(case, columns.type_index[rows], columns.count[rows])
    is_open[rows] = least_s < known_s[rows]
    return is_open


def least_swap_s(case: StepCase, type_index: Integers, count: Integers) -> Floats:
    """Return a bound from below on the step of swapping peers; inf where there can be none [s].

    ``type_index``, ``count``: shape (n,).
    """
    found = np.full(len(count), np.inf)
    for place, (row, n) in enumerate(zip(type_index.tolist(), count.tolist(), strict=True)):
        on = _peers(case, row)
        if on is not None:
            found[place] = _EXACT * least_step_s([on], _asked(case, on, n))
    return found


def swapping_reasons(columns: TimeColumns, row: int) -> tuple[str, ...]:
    """Return what a reader must know of a row whose peers swap layers."""
    every = int(np.asarray(columns.layouts.average_every)[row])
    averaging_s = float(columns.shares["network"][row] * columns.step_s[row])
    return (
        "layer swapping: every GPU trains the whole model, its layers loaded from host memory",
        *averaging_notes(every, averaging_s),
        UNRELEASED,
    )


def _is_open(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows on accelerators that only memory, links or the layout may speak against."""
    can_run = np.isin(columns.status, [CODE[name] for name in _OPEN])
    can_run &= host_fits(case.job, case.work, case.fleet, columns.type_index)
    return np.asarray(can_run & case.fleet.is_accelerated[columns.type_index])


def _swapped(case: StepCase, row: int, count: int, below_s: float) -> SwapStep | None:
    on = _peers(case, row)
    if on is None:
        return None
    try:
        return swap_step([on], _asked(case, on, count), below_s=below_s)
    except PlanningError:
        return None


def _asked(case: StepCase, on: PeersOn, count: int) -> SwapQuestion:
    return SwapQuestion(
        peers=count * on.place.group.node.devices,
        global_batch=case.job.global_batch,
        average_every=case.space.average_every or AVERAGE_EVERY,
        space=case.space,
    )


def _peers(case: StepCase, row: int) -> PeersOn | None:
    """Return the model on the GPUs of a type, made once; None where little is known of them."""
    fleet = case.fleet
    beside = (fleet.network_latency_s, fleet.vcpus, np.nan_to_num(fleet.core_speed))
    key = ("swapping", *machine_key(case, row), *(column[row].item() for column in beside))
    if key not in case.seen:
        name = fleet.devices[fleet.device[row]].name.partition("/")[0]
        known = case.accelerators.get(name)
        case.seen[key] = None if known is None else _peers_on(case, row, known)
    found: PeersOn | None = case.seen[key]
    return found


def _peers_on(case: StepCase, row: int, known: Accelerator) -> PeersOn | None:
    try:
        node, card = node_of(case.fleet, row, case.accelerators), known.laid_out()
    except CatalogueError:
        return None
    group = ClusterGroup(label=node.name, node=node, part=card, count=1)
    place = Place(group=group, case=case, row=row)
    return PeersOn(model=model_at(case, (place,)), place=place)


def _columns(case: StepCase, before: TimeColumns, found: list[SwapStep]) -> TimeColumns:
    """Return rows of swapping peers; start and data are those of the other ways."""
    parts: dict[Bottleneck, Floats] = {
        name: np.array([step.parts_s.get(name, 0.0) for step in found]) for name in WAITS
    }
    step_s, shares = shares_of(parts)
    devices = case.fleet.per_node[before.type_index]
    plans = [step.plan for step in found]
    return replace(
        before,
        status=np.zeros_like(before.status),
        way=np.full_like(before.way, SWAPPING),
        step_s=step_s,
        log_sd=np.array([step.log_sd for step in found]),
        shares=shares,
        layouts=integer_layouts(
            len(found),
            dp=devices * before.count,
            micro_batch=[step.model.micro_batch for step in found],
            accumulation_steps=[plan.accumulation_steps for plan in plans],
            recompute=RECOMPUTES.index("full"),
            offloads_optimizer=1,
            offloads_parameters=1,
            average_every=[plan.average_every for plan in plans],
        ),
        memory_bytes=np.array([step.memory_bytes for step in found]),
        host_bytes=np.array([plan.host_bytes for plan in plans]) * devices,
        is_extrapolating=np.array([is_extrapolating(case, int(row)) for row in before.type_index]),
    )


class LayerSwapping:
    """Layer swapping as one of the ways beside the layouts (``ways.beside``)."""

    name: Final = NAME

    def applies(self, case: StepCase) -> bool:
        """Whether it is asked for."""
        return case.space.swaps

    def columns(self, case: StepCase, columns: TimeColumns) -> TimeColumns:
        """Return the best of the other ways' rows and its own."""
        return with_swapping(case, columns)

    def could_win(self, case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
        """Return the rows that it may do better, or alone."""
        return could_swap(case, columns)

    def bound(self, case: StepCase, type_index: Integers, count: Integers) -> Floats:
        """Return a bound from below on its step [s]."""
        return least_swap_s(case, type_index, count)

    def words(self, columns: TimeColumns, row: int) -> tuple[str, ...]:
        """Return what a reader must know of one of its rows."""
        return swapping_reasons(columns, row)

    def without(self, space: SearchSpace) -> SearchSpace:
        """Return the layouts to search, this way left out."""
        return replace(space, swaps=False)

    def is_asked(self, asked: LayoutRequest) -> bool:
        """Whether it was asked for by its own flag."""
        return bool(asked.swap)

    def stands_beside(self, cluster: Cluster, asked: LayoutRequest) -> bool:
        """Whether ``plan`` shows it: where asked for, or on consumer cards."""
        return is_compared(cluster, asked.swap)

    def choice(self, case: OnGroups, asked: LayoutRequest) -> Choice:
        """Return it on all devices of a cluster."""
        return layer_swapping(case, average_every=asked.average_every)

    def instead(self, problem: PlanningError, found: Choice) -> PlanningError:
        """Return why nothing else runs, with what this way would take."""
        return or_swap(problem, [found])


LAYER_SWAPPING: Final = LayerSwapping()
