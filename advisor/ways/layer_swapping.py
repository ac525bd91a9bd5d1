"""Layer swapping (ATOM): every GPU trains the whole model, its layers loaded from host memory.

The peers average their weights every K steps, so that a slow network is met once in K steps and
not at every micro-batch. Between two averagings each peer takes K steps of its own: local SGD
(Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019). What K costs in steps to
the same loss is **not** modelled; K = 1 is synchronous SGD, as in every other layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from advisor.errors import UsageError
from advisor.machines.cluster import NamedCluster
from advisor.machines.fleet import assumed_network_log_sd
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.units import GIB
from advisor.planners.swapping import atom
from advisor.planners.swapping.atom import SwapPlan
from advisor.ways.answer import Choice
from advisor.ways.on_groups import OnGroups
from advisor.ways.swap_peers import PeersOn, SwapQuestion, SwapStep, swap_step

NAME: Final = "layer swapping"
# GeForce cards: no NVLink, machines joined by Ethernet. ATOM was made for these.
_CONSUMER: Final = re.compile(r"^(GTX|RTX)-\d\d[5-9]0|^TITAN")
UNRELEASED: Final = "no released framework swaps layers this way (ATOM's code is not published)"


def is_compared(cluster: NamedCluster, wanted: bool | None) -> bool:
    """Whether swapping stands beside the layouts: where asked for, or on consumer cards."""
    if wanted is not None:
        return wanted
    return all(_CONSUMER.match(g.part.name) for g in cluster.groups)


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

    Parameters
    ----------
    case : OnGroups
        The slowest of its groups rules the step.
    average_every : int or None
        Steps between two averagings of the peers' weights (K); 1 is synchronous SGD; None:
        ``planners.swapping.atom.AVERAGE_EVERY``.

    Raises
    ------
    UsageError
        If ``average_every`` is below 1.
    PlanningError
        If the model does not fit into host memory, or no layer into a GPU.
    """
    every = atom.AVERAGE_EVERY if average_every is None else average_every
    if every < 1:
        raise UsageError(
            f"--average-every {every} is out of range",
            hint="1 averages after every step, 8 after every eighth",
        )
    kinds = [PeersOn(model=case.model, place=place) for place in case.model.places]
    asked = SwapQuestion(
        peers=case.cluster.devices,
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
    rival_s = atom.pipeline_rival_s(
        found.model,
        found.on.peer(u),
        peers=case.cluster.devices,
        micro_batches=-(-case.global_batch // u),
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

    Parameters
    ----------
    average_every : int
        Steps between two averagings.
    averaging_s : float
        Of it in one step; 0 on a single GPU. [s]
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
