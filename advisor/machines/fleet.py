"""Every instance type of the catalogue as columns that the planners understand.

A machine without accelerators is one device (all its cores); a machine with accelerators has as
many devices as it carries. Links are those of the catalogue; where the catalogue has no measured
link between two accelerators of a machine, the rule is that of ``catalogue.link_between``.

Of these machines a job sees what its limits leave it (``limited_fleet``), main memory must hold
its processes, each on a virtual CPU (``host_fits``), and processors that burst slow it down
(``slowed_by_baseline``).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import (
    Accelerator,
    AssumedNetwork,
    Catalogue,
    KnownNetworks,
    TypeColumns,
    link_between,
    with_assumed_networks,
)
from advisor.collectors.derive import advised_memory_bytes
from advisor.jobs import Job
from advisor.machines.cluster import ClusterGroup, machines_filled, network_latency_s
from advisor.machines.devices import cpu_device, processor_bytes_per_s, threads_per_core
from advisor.planners.core import GIB, MIB, Device, Work
from advisor.planners.memory import model_state
from advisor.planners.step import Devices

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Cards that run today's PyTorch script unchanged ("cuda" devices, not marked as legacy in the
# accelerator table); the others need their vendor's fork or compiler.
_CUDA_VENDORS: Final = ("NVIDIA", "AMD")
# One message: NCCL over NVLink, through host memory, and TCP or RDMA between machines
# (reference values of NCCL's own tuning model, in the order of magnitude; 48 us between machines
# is the fit of our layout trial, 15 us the usual RDMA figure).
LATENCY_S: Final = {"nvlink": 6e-6, "host": 20e-6, "ethernet": 48e-6, "rdma": 15e-6}


# Numbers of a type that no way of training reads: what they say stands in the device's columns. A
# column that is added tells types apart until it is named here.
_NOT_READ: Final = frozenset({
    "accelerator_count", "accelerator_memory_bytes", "network_burst_bytes_per_s",
    "intra_node_bytes_per_s", "host_device_bytes_per_s", "local_ssd_bytes",
})  # fmt: skip


def alike(fleet: TypeColumns, type_index: Integers) -> tuple[Integers, Integers]:
    """Return types that stand for all others: no way of training tells them apart.

    ``type_index``: shape (n,).

    Returns
    -------
    first, place : integer arrays of shape (k,) and (n,)
        Types among ``type_index``, rising; and which of them stands for each.
    """
    columns = [
        column[type_index].astype(float)
        for name, column in fleet.by_name().items()
        if name not in _NOT_READ and column.dtype.kind != "U"
    ]
    facts = np.ascontiguousarray(np.column_stack(columns) + 0.0)  # no -0.0: bytes are compared
    rows = facts.view(np.dtype((np.void, facts.dtype.itemsize * facts.shape[1]))).ravel()
    _, at, place = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(at)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return np.asarray(type_index[at[order]]), np.asarray(rank[place.ravel()])


def assumed_network_log_sd(
    fleet: TypeColumns, type_index: Integers, count: Integers, slope: Floats
) -> Floats:
    """Return what assumed networks add to the spread of log(step), in quadrature.

    0 on one machine, and where the network is known.

    ``type_index``, ``count``: shape (n,); ``slope``: (n,); by how much ln(step) falls as the
    logarithm of the network rises, in [0, 1].
    """
    sd = fleet.network_log_sd[type_index] * slope
    return np.where(np.asarray(count) > 1, sd, 0.0)


def catalogue_fleet(catalogue: Catalogue) -> TypeColumns:
    """Return the catalogue's types with the columns of the device model."""
    types = with_assumed_networks(catalogue.types, catalogue.accelerators)
    names, kind = np.unique(types.accelerator, return_inverse=True)
    rows = [catalogue.accelerators.get(name) for name in names.tolist()]
    supported = np.array([row is None or _is_supported(row) for row in rows])[kind]
    joined = np.array([0 if row is None else row.link_devices or 0 for row in rows])[kind]
    counts = np.nan_to_num(types.accelerator_count)
    per_node = np.maximum(np.ceil(counts), 1).astype(np.int64)
    devices, device = _devices(catalogue)
    is_host = (types.intra_node_link == "") | np.char.startswith(types.intra_node_link, "pcie")
    return replace(
        types,
        devices=devices,
        device=device,
        per_node=per_node,
        domain_machines=np.maximum(joined // per_node, 1),
        is_accelerated=counts > 0,
        is_supported=supported,
        intra_bytes_per_s=_intra_bytes_per_s(catalogue),
        intra_latency_s=np.where(is_host, LATENCY_S["host"], LATENCY_S["nvlink"]),
        network_latency_s=network_latency_s(types.rdma_share),
        is_rented=True,
    )


def lone_fleet(
    device: Device, count: int, row: Accelerator | None, core_speed: float | None = None
) -> TypeColumns:
    """Return one machine that nobody sells: ``count`` of a device, and a host without limits.

    ``row``: the catalogue's row of the device: its own link, or its PCIe generation;
    ``core_speed``: of an accelerator's host [1/s].
    """
    between, is_own = link_between(row)
    is_cpu = device.kind == "cpu"
    return one_type(
        device,
        per_node=count,
        intra_bytes_per_s=between,
        has_own_links=is_own,
        network_bytes_per_s=np.inf,
        rdma_share=1.0,
        vcpus=float(device.cores or 1) if is_cpu else np.inf,
        core_speed=device.core_speed if is_cpu else core_speed,
        memory_bytes=device.memory_bytes if is_cpu else np.inf,
    )


def lone_machines(device: Device, count: int, catalogue: Catalogue) -> tuple[TypeColumns, int]:
    """Return machines with ``count`` of a device of which nothing else is said, and their number.

    What one rented machine holds is in one. More are in several (``cluster.machines_filled``),
    over the network that machines with so many of them are rented with. It is assumed, and its
    spread with it.

    Raises UsageError if they fill no equal machines.
    """
    row = catalogue.accelerators.get(device.name)
    machines, per_node = 1, count
    if device.kind != "cpu":
        machines, per_node = machines_filled(count, device.name, catalogue)
    fleet = lone_fleet(device, per_node, row, _usual_core_speed(device.name, catalogue))
    if machines == 1:
        return fleet, 1
    network = KnownNetworks(catalogue.types, catalogue.accelerators).network(device.name, per_node)
    joined = 1 if row is None else (row.link_devices or 0) // per_node
    fleet = replace(fleet, domain_machines=np.array([max(joined, 1)]))
    return over_assumed_network(fleet, network), machines


def _usual_core_speed(accelerator: str, catalogue: Catalogue) -> float | None:
    """Return the speed of the cores that an accelerator is rented with; None if unknown [1/s].

    Machines of one processor count once: what one maker sells in many sizes is one host.
    """
    types = catalogue.types
    has_it = (types.accelerator == accelerator) & np.isfinite(types.core_speed)
    if not has_it.any():
        return None
    _, kind = np.unique(types.cpu_model[has_it], return_inverse=True)
    speed = types.core_speed[has_it]
    return float(np.median([np.median(speed[kind == one]) for one in range(int(kind.max()) + 1)]))


def over_assumed_network(machines: TypeColumns, network: AssumedNetwork) -> TypeColumns:
    """Return machines of one type over a network that nobody stated."""
    return replace(
        machines,
        network_bytes_per_s=np.array([network.bytes_per_s]),
        network_latency_s=network_latency_s([network.is_rdma]),
        rdma_share=np.array([float(network.is_rdma)]),
        is_network_assumed=np.array([True]),
        network_log_sd=np.array([network.log_sd]),
    )


def one_type(
    device: Device, *, per_node: int, intra_bytes_per_s: float, has_own_links: bool,
    rdma_share: float, core_speed: float | None, **known: Any,
) -> TypeColumns:  # fmt: skip
    """Return machines of one type, ``per_node`` devices in each; see ``TypeColumns``.

    ``has_own_links``: the devices' links do not pass through the host; ``known``: the network,
    and the columns of the host.
    """
    usual: dict[str, Any] = {
        "domain_machines": 1, "cpu_baseline": 1.0, "cpu_launch_h": 0.0, "network_log_sd": 0.0,
        "is_supported": True, "is_accelerated": device.kind != "cpu",
    }  # fmt: skip
    return TypeColumns.filled(
        1,
        devices=Devices((device,)),
        per_node=per_node,
        intra_bytes_per_s=intra_bytes_per_s if per_node > 1 else np.inf,
        intra_latency_s=LATENCY_S["nvlink" if has_own_links else "host"],
        network_latency_s=network_latency_s(rdma_share),
        rdma_share=rdma_share,
        core_speed=np.nan if core_speed is None else core_speed,
        **usual | known,
    )


def _is_supported(row: Accelerator) -> bool:
    return row.training_use == "yes" and row.vendor in _CUDA_VENDORS


def _devices(catalogue: Catalogue) -> tuple[Devices, Integers]:
    """Return the distinct devices of the types, and which is whose; -1 has no time model."""
    types = catalogue.types
    speed = [None if one != one else one for one in types.core_speed.tolist()]  # nan is not nan
    facts = (types.accelerator, np.minimum(types.accelerator_count, 1.0), types.vcpus,
             types.memory_bytes, types.cpu_model, types.cpu_arch)  # fmt: skip
    columns = zip(*(one.tolist() for one in facts), speed, types.name.tolist(), strict=True)
    found: list[Device] = []
    known: dict[tuple[object, ...], int] = {}
    place = []
    for card, share, vcpus, memory_bytes, model, arch, core_speed, name in columns:
        if not card and vcpus != vcpus:  # stands only in a table that may be left out
            place.append(-1)
            continue
        key = (card, share) if card else (int(vcpus), memory_bytes, core_speed, model, arch)
        if key not in known:
            row = catalogue.accelerators.get(card)
            device = (row.device_of_share(share) if row else None) if card else cpu_device(
                name=name, vcpus=int(vcpus), memory_bytes=memory_bytes, core_speed=core_speed,
                cpu_model=model, cpu_arch=arch,
            )  # fmt: skip
            known[key] = -1 if device is None else len(found)
            found += [] if device is None else [device]
        place.append(known[key])
    return Devices(found), np.array(place, dtype=np.int64)


def _intra_bytes_per_s(catalogue: Catalogue) -> Floats:
    """Return the measured rate, else that of the card's own link or of PCIe (``link_between``)."""
    types, cards = catalogue.types, catalogue.accelerators
    has_peers = np.isin(types.accelerator, list(cards)) & (types.accelerator_count > 1)
    rate = np.where(has_peers, types.intra_node_bytes_per_s, np.inf)
    for i in np.flatnonzero(np.isnan(rate)).tolist():
        host = float(types.host_device_bytes_per_s[i])
        card, link = cards[str(types.accelerator[i])], str(types.intra_node_link[i])
        rate[i], _ = link_between(card, link, host_bytes_per_s=None if host != host else host)
    return rate


def limited_fleet(fleet: TypeColumns, job: Job) -> TypeColumns:
    """Return the machines with no more threads and cores than the job's limits leave it.

    A limit that the script or its environment sets stays where it runs: beyond it a larger machine
    has nothing for the job.
    The cards of accelerated machines stay as they are, their hosts do not. A script that was
    rehearsed wants an accelerator: no other machine runs it.
    """
    if job.is_rehearsed:
        fleet = replace(fleet, is_supported=fleet.is_supported & fleet.is_accelerated)
    threads, cores = job.compute_threads, job.limits.cores
    if threads is None:
        return fleet
    limited = Devices(limited_processor(device, threads) for device in fleet.devices)
    fleet = replace(fleet, devices=limited)
    if cores is None:
        return fleet
    vcpus = np.minimum(fleet.vcpus, cores)
    # What an account of credits lets last is the whole machine's, whichever cores use it.
    lasting = np.minimum(fleet.cpu_baseline * fleet.vcpus / vcpus, 1.0)
    baseline = np.where(fleet.cpu_launch_h > 0, lasting, fleet.cpu_baseline)
    return replace(fleet, vcpus=vcpus, cpu_baseline=baseline)


def limited_processor(device: Device, threads: float) -> Device:
    """Return a processor of which a job uses so many threads; a card as it is.

    A few threads have a physical core each, where there are as many: with two hyper-threads a
    core, half of the virtual CPUs do nearly all of the work.
    """
    if device.kind != "cpu" or not device.cores or device.cores <= threads:
        return device
    used = min(threads * threads_per_core(device.vendor), float(device.cores))
    share = used / device.cores
    rates: dict[str, Any] = {
        f.name: value * share
        for f in fields(Device)
        if f.name.endswith("_flop_per_s") and (value := getattr(device, f.name)) is not None
    }
    reached = processor_bytes_per_s(device.vendor, used)
    return replace(
        device,
        **rates,
        memory_bytes_per_s=min(device.memory_bytes_per_s, reached),
        cores=max(1, round(threads)),
    )


def own_fleet(
    group: ClusterGroup, known: TypeColumns, *, per_node: int
) -> tuple[TypeColumns, int]:
    """Return machines and the row among them that is one of ``group``'s.

    A job gets ``per_node`` devices of each: the others are others' jobs', and so is their share
    of the machine's processors and of its memory. ``known`` are the catalogue's machines.
    """
    if group.type_index is not None:
        share = per_node / known.per_node[group.type_index]
        return replace(
            known,
            per_node=np.full_like(known.per_node, per_node),
            vcpus=known.vcpus * share,
            memory_bytes=known.memory_bytes * share,
        ), group.type_index
    return _named_by_accelerator(group, per_node), 0


def _named_by_accelerator(group: ClusterGroup, per_node: int) -> TypeColumns:
    node, device = group.node, group.part.device
    assert device is not None  # models are laid out on it
    share = per_node / node.devices
    machines = one_type(
        device,
        per_node=per_node,
        intra_bytes_per_s=node.intra.bytes_per_s,
        has_own_links=not node.intra.name.startswith("pcie"),
        network_bytes_per_s=node.network.bytes_per_s,
        rdma_share=node.network.rdma_share or 0.0,
        vcpus=node.vcpus * share,
        core_speed=node.core_speed,
        memory_bytes=node.memory_bytes * share,
        domain_machines=node.domain_machines,
    )
    network = group.assumed_network
    return machines if network is None else over_assumed_network(machines, network)


# A process that has trained on a processor: 302 MiB resident with PyTorch 2.13 on Linux, 212 MiB
# of it not shared with others (measured 2026-11-28); a loader's own and its part of what it
# shares: 83 MiB.
_PYTORCH_BYTES: Final = 302 * MIB
_LOADER_BYTES: Final = 83 * MIB
# With CUDA such a process holds 1.8 to 2.0 GiB: github.com/pytorch/pytorch/issues/12873 (1,873
# MiB), 19397 (2 GB more), 113326 (2,056,600 kB). Processes share none of it
# (github.com/tensorflow/tensorflow/issues/36459).
_CUDA_BYTES: Final = 2.0 * GIB - _PYTORCH_BYTES
# Weights are read file by file, which transformers writes at 5 GB at most (``max_shard_size``).
_MOST_LOADED_BYTES: Final = 5e9


def host_process_bytes(job: Job, work: Work) -> float:
    """Return the main memory that the process of one rank on an accelerator takes [bytes].

    It holds what the recorded one held beside its tensors, else Python and PyTorch; the kernels
    and libraries of CUDA; a file of weights while they are loaded; its loaders' own pages.
    """
    own, libraries, seen = float(_PYTORCH_BYTES), _CUDA_BYTES, job.measured
    if job.peak_rss_bytes:
        state = model_state(work.parameter_bytes, work.parameter_bytes, work.optimizer_state_bytes)
        tensors = float(state.device_bytes) + work.saved_bytes_per_sample * job.recorded_batch
        beside = max(job.peak_rss_bytes - tensors, 0.3 * job.peak_rss_bytes)
        own = advised_memory_bytes(int(beside))
        if seen is not None and not seen.device.startswith("cpu"):
            libraries = 0.0  # they are among what was recorded
    loading = min(work.parameter_bytes, _MOST_LOADED_BYTES)
    return own + libraries + loading + job.feed.workers * _LOADER_BYTES


def host_needed_bytes(job: Job, work: Work, fleet: TypeColumns, type_index: Integers) -> Floats:
    """Return the main memory that the processes of one machine of each type take [bytes].

    On processors a process is as large as the recorded one; of a described one the tensors decide
    (``planners.memory``).
    """
    each = np.where(
        fleet.is_accelerated[type_index],
        host_process_bytes(job, work),
        advised_memory_bytes(job.peak_rss_bytes),
    )
    return np.asarray(each * fleet.per_node[type_index], dtype=float)


def host_fits(job: Job, work: Work, fleet: TypeColumns, type_index: Integers) -> NDArray[np.bool_]:
    """Whether main memory holds the processes of a machine, and each has a virtual CPU."""
    is_held = host_holds(job, work, fleet, type_index)
    return is_held & ~lacks_vcpus(job, fleet, type_index)


def host_holds(
    job: Job, work: Work, fleet: TypeColumns, type_index: Integers
) -> NDArray[np.bool_]:
    """Whether main memory holds the processes of a machine."""
    needed = host_needed_bytes(job, work, fleet, type_index)
    return np.asarray(needed <= fleet.memory_bytes[type_index])


def lacks_vcpus(job: Job, fleet: TypeColumns, type_index: Integers) -> NDArray[np.bool_]:
    """Whether ranks of a machine take turns on a virtual CPU.

    The process of a rank starts kernels all the time, or waits for them in a thread that polls:
    the times of steps count one virtual CPU for each. What nobody states is no reason; a job that
    limits its own cores takes turns wherever it runs.
    """
    ranks = np.minimum(fleet.per_node[type_index], job.limits.cores or np.inf)
    short = fleet.vcpus[type_index] < ranks * (1.0 - 1e-9)
    return np.asarray(short & fleet.is_accelerated[type_index])


def host_room_bytes(job: Job, work: Work, fleet: TypeColumns, row: int) -> float:
    """Return what the processes leave of a machine's main memory: for offloading [bytes]."""
    needed = host_needed_bytes(job, work, fleet, np.array([row]))
    return max(float(fleet.memory_bytes[row] - needed[0]), 0.0)


def busy_vcpus(job: Job, vcpus: Floats) -> Floats:
    """Return how many of a machine's virtual CPUs the job keeps busy."""
    program = job.program
    if program is None:
        return np.minimum(vcpus, job.compute_threads or np.inf)
    usable = np.minimum(vcpus, program.cores or np.inf)
    if program.host_cores is None:
        return np.minimum(usable, program.parallelism)
    return np.asarray(usable * min(program.parallelism / program.host_cores, 1.0))


def surplus_usd_per_h(
    job: Job, vcpus: Floats, baseline: Floats, surplus_usd_per_vcpu_h: Floats
) -> Floats:
    """Return what processor time beyond the baseline costs by the hour on one machine [USD/h]."""
    beyond = np.maximum(busy_vcpus(job, vcpus) - baseline * vcpus, 0.0)
    return np.nan_to_num(beyond * surplus_usd_per_vcpu_h)


def slowed_by_baseline(
    job: Job, fleet: TypeColumns, type_index: Integers, work_h: Floats
) -> Floats:
    """Return by how much the mean step of the whole job exceeds one at full speed; 1 or more.

    Processors that burst last at a baseline:

    ====  =============================================================================
    here  meaning
    ====  =============================================================================
    v, b  virtual CPUs of a machine, and the share of each that lasts (its baseline)
    u     virtual CPUs that the job keeps busy
    L     what a machine may compute beyond its baseline from its launch on [vCPU-hours]
    ====  =============================================================================

    Where more is sold (AWS "unlimited"), the job runs at full speed, and u - b v vCPU-hours are
    paid an hour (``surplus_usd_per_h``). Else it runs at full speed for L / (u - b v) hours, and
    then at b v / u of it (AWS "standard", Azure). Where nothing is given at launch every virtual
    CPU is held at b from the start (Google's shared cores).

    ``work_h``: what the job takes at full speed; infinite where its length is not known [h].
    """
    share, launch_h = fleet.cpu_baseline[type_index], fleet.cpu_launch_h[type_index]
    vcpus = fleet.vcpus[type_index]
    busy, lasting = busy_vcpus(job, vcpus), share * vcpus
    has_credits = launch_h > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where(has_credits, np.minimum(lasting / busy, 1.0), share)
        at_full_h = np.where(busy > lasting, launch_h / (busy - lasting), np.inf)
        at_full = np.where(has_credits, np.minimum(at_full_h / work_h, 1.0), 0.0)
        slower = at_full + (1.0 - at_full) / speed
    is_held = (share < 1.0) & np.isnan(fleet.cpu_surplus_usd_per_h[type_index])
    return np.where(is_held, slower, 1.0)
