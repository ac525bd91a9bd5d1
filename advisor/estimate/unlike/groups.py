"""The question to a way over unlike machines: this model, these groups, this batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from advisor.answer import Answer, Command, Estimate
from advisor.estimate.answer import assumed_network, memory_record
from advisor.estimate.knowledge.laws import LayoutLaw, ModelOn
from advisor.estimate.plan import way_on
from advisor.estimate.unlike.places import network_waits, slowest_assumed
from advisor.estimate.ways.model_parallel import stack_spaces
from advisor.machines import Cluster, ClusterGroup
from advisor.planners.core import Layout, PlanningError
from advisor.planners.layouts import SearchSpace
from advisor.planners.memory import Ledger, needed_of

Machines = list[ClusterGroup]
# Options by the names of what may be chosen.
_CALLED: Final = {
    "tp": "tensor-parallel degree", "pp": "number of stages", "cp": "context-parallel degree",
    "ep": "expert-parallel degree", "zero_stages": "ZeRO stage", "recomputes": "recomputation",
    "micro_batch": "micro-batch", "accumulation_steps": "number of micro-batches",
    "chunks": "number of chunks",
}  # fmt: skip
# Degrees of a way in which every rank holds the whole model.
ALONE: Final[dict[str, Collection[object]]] = dict.fromkeys(("tp", "pp", "cp", "ep"), (1,))


@dataclass(frozen=True, kw_only=True)
class OnGroups:
    """A model on the groups of a cluster."""

    model: ModelOn
    cluster: Cluster
    global_batch: int  # samples of a step over all devices
    coverage: float = 0.9  # probability that an interval holds the true value
    command: tuple[str, ...] = ()  # the recorded command line; empty for a described model
    only_released: bool = False  # leave out what no released framework runs
    most_s: float = math.inf  # slower ways need not be found: another one is as fast [s]

    @property
    def space(self) -> SearchSpace:
        """What a layout may be: also of a stack that its user named."""
        case = self.model.places[0].case
        is_named = not case.work.setup.is_stack_assumed
        return stack_spaces(case.space, case.work.setup)[-1] if is_named else case.space

    def refuse(self, **only: Collection[object]) -> None:
        """Refuse a search space that asks for what a way has not.

        ``**only``: what the way can take, by the name of what may be chosen.

        Raises PlanningError if nothing that may be chosen is among them; the message names the
        option.
        """
        space = self.space
        if space.moves or space.updates_in_backward:
            raise PlanningError(
                "it moves nothing to host memory, and updates after the backward pass",
                hint="leave --offload and --optimizer-in-backward out, or plan on machines of one "
                "type",
                exit_code=3,
            )
        for name, able in {"schedule": ("1f1b",), "chunks": (1,), **only}.items():
            asked = getattr(space, name)
            wanted = asked if isinstance(asked, tuple) else (asked,)
            least = getattr(space, f"min_{name}", 1)
            if any(one is None or one in able for one in wanted) and least in {1, *able}:
                continue
            words = ", ".join(map(str, wanted))
            raise PlanningError(
                f"it has no {_CALLED.get(name, name)} of {words}",
                hint="leave the option open, or plan on machines of one type",
                exit_code=3,
            )

    @property
    def groups(self) -> tuple[ClusterGroup, ...]:
        """The cluster's groups, with the links that the estimate reads."""
        return self.model.groups

    @property
    def devices(self) -> int:
        """Accelerators of all groups together."""
        return sum(g.devices for g in self.groups)

    @property
    def nodes(self) -> int:
        """Machines of all groups together."""
        return sum(g.count for g in self.groups)

    def choice(
        self, name: str, step_s: float, log_sd: float, *, ledgers: Mapping[str, Ledger],
        parts_s: Mapping[str, float], details: Mapping[str, Any],
        samples: Mapping[str, float] | None = None, layouts: Mapping[str, Layout] | None = None,
        commands: tuple[Command, ...] = (), notes: tuple[str, ...] = (),
    ) -> Answer:  # fmt: skip
        """Return a way that uses all machines of the cluster.

        ``ledgers``: of the fullest device, by the groups' labels [bytes]; ``parts_s`` are what a
        step waits for; what they do not hold is computing; ``samples``:
        that a device loads in a step, by its group's label; none where the step has it already.
        """
        loaded = self.model.loading_s(samples or {}, step_s)
        step_s += loaded
        waits = {name: part for name, part in (*parts_s.items(), ("input", loaded)) if part > 0}
        waits = {"compute": max(step_s - sum(waits.values()), 0.0), **waits}
        assumed = slowest_assumed(self.model.places)
        slope = network_waits(waits) / step_s
        if assumed is not None:
            spread = max(float(p.case.fleet.network_log_sd[p.row]) for p in self.model.places)
            log_sd = float(np.hypot(log_sd, spread * slope))
        return way_on(
            self.cluster,
            {g.label: g.count for g in self.groups},
            name=name,
            step_time_s=Estimate.lognormal(step_s, log_sd, self.coverage),
            global_batch=self.global_batch,
            devices=self.devices,
            memory_bytes={label: float(needed_of(held)) for label, held in ledgers.items()},
            memory=memory_record(
                ledgers,
                self.model.law.memory,
                {g.label: g.node.device for g in self.groups},
                self.space.sureness if self.is_laid_out else None,
            ),
            layouts=layouts,
            details={**details, "parts_s": waits, "layer_times": self.model.law.name},
            commands=commands,
            notes=(
                *notes,
                *(notes_of(self.groups) if self.is_laid_out else ()),
                *(() if assumed is None else (assumed_network(assumed, slope),)),
            ),
        )

    @property
    def is_laid_out(self) -> bool:
        """Whether the model is a transformer that equal machines would lay out by its shape."""
        return isinstance(self.model.law, LayoutLaw)

    def machines(self) -> Machines:
        """Return every machine as a group of its own."""
        return [replace(g, count=1) for g in self.groups for _ in range(g.count)]

    def even_samples(self) -> dict[str, float]:
        """Return an equal share of a step's samples for a device of every group."""
        return {g.label: self.global_batch / self.devices for g in self.groups}

    def worker_labels(self) -> list[str]:
        """Return the group of every device, in order."""
        return [g.label for g in self.groups for _ in range(g.devices)]


def notes_of(groups: Sequence[ClusterGroup]) -> tuple[str, ...]:
    """Return what a reader must know of the accelerators' rates."""
    return tuple(
        f"{g.part.name}: no measured rate of large products is known, inferred from the datasheet"
        for g in groups
        if g.part.is_inferred
    )


def fullest(labels: Sequence[str], used: Sequence[float]) -> dict[str, float]:
    """Return the most memory, or samples, of a device by label."""
    found: dict[str, float] = {}
    for label, value in zip(labels, used, strict=True):
        found[label] = max(found.get(label, 0.0), value)
    return found


def fullest_ledgers(labels: Sequence[str], held: Sequence[Ledger]) -> dict[str, Ledger]:
    """Return the memory of the fullest device by label."""
    found: dict[str, Ledger] = {}
    for label, terms in zip(labels, held, strict=True):
        if label not in found or needed_of(found[label]) < needed_of(terms):
            found[label] = terms
    return found
