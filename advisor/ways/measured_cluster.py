"""A job whose steps were measured on several numbers of devices: its own law of scaling there.

Where nothing was measured, links as sold and published constants time the exchange of gradients
(``ways.data_parallel``). Three runs of the job on at least two numbers of devices say more: the
law of ``planners.links.scaling_law`` is fitted to them, and takes the place of the nominal links
on machines with the same device and network, however many. What the device model says of one
device stands in as runs of its own error, so that other batches than the measured ones are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from advisor.machines.fleet import Fleet
from advisor.planners.core.nouns import Device, Work
from advisor.planners.links.scaling_fit import NOISE, MeasuredPlacements, ScalingFit, fit_cluster
from advisor.planners.links.scaling_law import Array, Placements
from advisor.planners.step.device import step_time
from advisor.planners.step.device_parameters import DeviceParameters

LEAST_RUNS: Final = 3
LEAST_SIZES: Final = 2
# Batches of one device at which the device model stands in, between the least and the most
# measured ones and twice as far.
_BATCHES: Final = 5


Key = tuple[str, float, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """One measured step of the job.

    Attributes
    ----------
    key : (str, float, bool)
        Of its machines: ``key_of``.
    device : Device
    nodes, per_node : int
        Machines, and the devices used of each.
    batch : float
        Samples of a step on one device.
    step_s : float
        [s]
    """

    key: Key
    device: Device
    nodes: int
    per_node: int
    batch: float
    step_s: float

    @property
    def workers(self) -> int:
        """Devices in all."""
        return self.nodes * self.per_node


def key_of(fleet: Fleet, row: int) -> Key:
    """Return what machines have in common on which a job scales alike: device and network."""
    name = fleet.devices[fleet.device[row]].name if fleet.device[row] >= 0 else ""
    return name, float(fleet.network_bytes_per_s[row]), bool(fleet.is_rdma[row])


def measured_clusters(
    runs: Sequence[PlacedRun], work: Work, parameters: DeviceParameters
) -> dict[Key, ScalingFit]:
    """Return the job's law on each kind of machines with runs enough."""
    return dict(_fits(runs, work, parameters))


def _fits(
    runs: Sequence[PlacedRun], work: Work, parameters: DeviceParameters
) -> Iterator[tuple[Key, ScalingFit]]:
    for key in dict.fromkeys(run.key for run in runs):
        own = [run for run in runs if run.key == key]
        if len(own) >= LEAST_RUNS and len({run.workers for run in own}) >= LEAST_SIZES:
            yield key, _fit(own, work, parameters)


def _fit(own: Sequence[PlacedRun], work: Work, parameters: DeviceParameters) -> ScalingFit:
    batch = np.array([run.batch for run in own])
    device = own[0].device
    asked = np.geomspace(batch.min() / 2, batch.max() * 2, _BATCHES)
    columns = step_time(work, [device], asked, parameters)
    bare_s = columns.micro_batch_s[0] + columns.optimizer_s[0]
    known = MeasuredPlacements(
        placements=placements(
            np.array([*(run.nodes for run in own), *np.ones(_BATCHES)]),
            np.array([*(run.per_node for run in own), *np.ones(_BATCHES)]),
            np.concatenate([batch, asked]),
        ),
        step_s=np.concatenate([[run.step_s for run in own], bare_s]),
        log_sd=np.concatenate([np.full(len(own), NOISE), np.full(_BATCHES, columns.log_sd[0])]),
    )
    return fit_cluster(known, [work.gradient_bytes])


def placements(nodes: Array, per_node: Array, batch: Array) -> Placements:
    """Return runs of the job as the law takes them, all machines alike."""
    nodes, per_node = np.asarray(nodes, float), np.asarray(per_node, float)
    return Placements(
        application=np.zeros(nodes.size, dtype=int),
        nodes=nodes,
        per_node=per_node,
        workers=nodes * per_node,
        batch=np.asarray(batch, float),
    )


def fitted_rows(
    clusters: Mapping[Key, ScalingFit], fleet: Fleet, type_index: np.ndarray
) -> list[tuple[ScalingFit, np.ndarray]]:
    """Return each law with the rows that it times."""
    if not clusters:
        return []
    used, place = np.unique(type_index, return_inverse=True)
    keys = [key_of(fleet, int(row)) for row in used]
    found = []
    for key, fit in clusters.items():
        types = [i for i, one in enumerate(keys) if one == key]
        rows = np.flatnonzero(np.isin(place, types))
        if rows.size:
            found.append((fit, rows))
    return found
