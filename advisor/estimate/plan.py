"""The answer of ``advisor plan``: ways to run the job on the cluster, best first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from advisor.answer import SCHEMA_VERSION, Answer, Configuration, Estimate, Named, Offer, Recorded
from advisor.estimate.answer import throughput
from advisor.estimate.ways.data_parallel import memory_there
from advisor.machines import Cluster, ClusterGroup
from advisor.planners.core import GIB, HOUR_S, Layout

Objective = Literal["time", "cost"]


def way_on(
    cluster: Cluster, machines: Mapping[str, int], *, name: str, step_time_s: Estimate,
    global_batch: int, devices: int, memory_bytes: Mapping[str, float],
    layouts: Mapping[str, Layout] | None = None, details: Mapping[str, Any] | None = None,
    **more: Any,
) -> Answer:  # fmt: skip
    """Return a way to train on machines of a cluster.

    Parameters
    ----------
    machines : mapping of str to int
        How many it uses, by the groups' labels, as the mappings after it.
    memory_bytes : mapping of str to float
        What the fullest device needs.
    layouts : mapping of str to Layout, optional
        None where the split is not a layout of equal ranks.
    details : mapping, optional
        What the way has to say; ``parts_s`` are what its step consists of. [s]
    **more
        Further fields of an ``Answer``.
    """
    said = dict(details or {})
    step_s = step_time_s.value
    shares = {part: seconds / step_s for part, seconds in said.pop("parts_s", {}).items()}
    used = [group for group in cluster if machines.get(group.label)]
    layouts = layouts or {}
    by_group = {group: needed / GIB for group, needed in memory_bytes.items()}
    there = [memory_there(group.node.device) for group in used]
    return Answer(
        name=name,
        way=name,
        configuration=Configuration(
            parts=tuple((_offer(one), machines[one.label]) for one in used)
        ),
        devices=devices,
        layout=next(iter(layouts.values()), Layout(dp=devices)),
        layouts=layouts,
        step_time_s=step_time_s,
        throughput_samples_per_s=throughput(global_batch, step_time_s),
        memory_gib=max(by_group.values(), default=0.0),
        memory_gib_by_group=by_group,
        **(there[0] if len(there) == 1 else {}),
        shares=shares,
        details=said,
        **more,
    )  # fmt: skip


def _offer(group: ClusterGroup) -> Offer:
    """Return a machine of a group as it was given."""
    price = group.price_usd_per_h
    return Offer(
        provider="", instance_type=group.label, region=group.region, pricing="given",
        price_usd_per_h=math.nan if price is None else price, accelerator=group.part.name,
        accelerators=float(group.node.devices), vcpus=0, memory_gib=group.node.memory_bytes / GIB,
    )  # fmt: skip


def burden(one: Answer, objective: Objective) -> float:
    """Return what is to be made small: time, or money (device-seconds without prices)."""
    price = one.configuration.price_usd_per_h
    if objective == "time":
        return one.step_time_s.value
    if math.isnan(price):
        return one.step_time_s.value * one.devices
    return 1e6 / one.throughput_samples_per_s.value / HOUR_S * price


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMachines(Recorded):
    """A cluster as it was named: how many devices, at which price where all have one [USD/h]."""

    devices: int
    region: str
    price_usd_per_h: float | None
    groups: tuple[GivenGroup, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> GivenMachines:
        """Return what a record says of a cluster."""
        groups = tuple(
            GivenGroup(
                label=g.label, machines=g.count, accelerator=g.part.name,
                accelerators_per_machine=g.node.devices, price_usd_per_h=g.price_usd_per_h,
                **memory_there(g.node.device),
            )
            for g in cluster
        )  # fmt: skip
        prices = [math.nan if g.price_usd_per_h is None else g.price_usd_per_h for g in cluster]
        usd_per_h = sum(price * g.count for price, g in zip(prices, cluster, strict=True))
        return cls(
            devices=sum(g.devices for g in cluster), region=cluster[0].region,
            price_usd_per_h=None if math.isnan(usd_per_h) else usd_per_h, groups=groups,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGroup:
    """Equal machines of it; the price is of one [USD/h], memory as of an ``Answer`` [GiB]."""

    label: str
    machines: int
    accelerator: str
    accelerators_per_machine: int
    price_usd_per_h: float | None
    device_memory_gib: float
    kept_free_gib: float

    @property
    def devices(self) -> int:
        """Accelerators of all machines together."""
        return self.machines * self.accelerators_per_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Recorded):
    """All ways found, the best first."""

    schema_version: int = SCHEMA_VERSION
    objective: Objective
    # subject, model: what is trained, in words and in numbers
    subject: str
    model: Mapping[str, Any]
    global_batch: int
    cluster: GivenMachines
    predictor: Named
    # considered, fitting: layouts evaluated, and those that fit
    considered: int = 0
    fitting: int = 0
    plans: tuple[Answer, ...]  # the first is the answer; those without commands never are
    # not dominated in time and cost on fewer machines; empty for mixed clusters
    front: tuple[Answer, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # what could not be planned, and why

    @property
    def choices(self) -> Sequence[Answer]:
        """The ways."""
        return self.plans

    @property
    def best(self) -> Answer:
        """The answer."""
        return self.plans[0]
