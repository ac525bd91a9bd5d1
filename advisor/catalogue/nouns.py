"""The nouns of the catalogue: what is shown of a type, an accelerator and a source.

Money is USD per hour, memory and rates are bytes; None is "unknown".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

Pricing = Literal["on-demand", "spot", "reserved-1y", "reserved-3y"]
PRICINGS: Final[tuple[Pricing, ...]] = get_args(Pricing)
SpeedSource = Literal["measured", "other benchmark", "same cpu model", "same family", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a group of prices comes from."""

    as_of: str  # ISO date of the source, ``""`` where the source has none
    status: str  # ``"listed"``, or how the on-demand price was derived
    spot_status: str  # the same of the spot price; ``""`` where there is none
    # ``"offered"``, ``"retired"``, ``"not-offered-or-unknown"`` or ``"list-price-no-stock-info"``
    listing: str
    source: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One row of ``TypeColumns``, which says what each means, with its place in it."""

    index: int
    provider: str
    name: str
    vcpus: float | None
    memory_bytes: float | None
    accelerator: str
    accelerator_count: float
    accelerator_memory_bytes: float | None
    network_bytes_per_s: float | None
    network_burst_bytes_per_s: float | None
    network_source: str
    rdma: str
    is_rdma: bool
    intra_node_link: str
    intra_node_bytes_per_s: float | None
    intra_node_basis: str
    host_device_bytes_per_s: float | None
    host_device_basis: str
    core_speed: float | None
    core_speed_source: str
    cpu_model: str
    cpu_arch: str
    local_ssd_bytes: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator as its maker describes it; peaks are dense, None where unknown."""

    name: str
    vendor: str
    architecture: str
    form: str
    memory_gb: float  # as sold, e.g. 80 for an A100 80 GB.
    # what one program can allocate (``advisor.catalogue.device_memory``), no margin taken off
    memory_bytes: float
    memory_bytes_per_s: float | None
    fp32_flop_per_s: float | None
    tf32_flop_per_s: float | None
    fp16_flop_per_s: float | None
    bf16_flop_per_s: float | None
    fp8_flop_per_s: float | None
    int8_op_per_s: float | None
    # sustained_bf16_flop_per_s, sustained_fp8_flop_per_s: best measured rate of large products
    sustained_bf16_flop_per_s: float | None
    sustained_fp8_flop_per_s: float | None
    tdp_w: float | None
    link: str  # name of the direct link to its neighbours, ``""`` where it has none
    link_bytes_per_s: float | None  # nominal, one direction, all links of one device together
    pcie_generation: float | None
    compute_capability: float | None
    # ``"yes"``, ``"legacy"``, ``"no"``, ``"neuron"`` or ``"xla"`` (needs that framework)
    training_use: str
    release_year: int | None
    # source_1, source_2: where the numbers come from, and what they were checked against
    source_1: str
    source_2: str
    # devices that its switches join across machines, e.g. 72 in an NVL72 rack; None where the link
    # ends with the machine.
    link_devices: int | None = None

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Nominal rate of its 16 PCIe lanes, one direction: a ceiling, not a measurement.

        8 GT/s a lane in generation 3 with 128b/130b coding, doubled by each generation.
        """
        if self.pcie_generation is None:
            return None
        return 16 * 8e9 / 8 * (128 / 130) * math.pow(2.0, self.pcie_generation - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrice:
    """What is billed besides instances: storage and outgoing traffic.

    ``price_usd`` is per ``unit``, e.g. ``"USD/GiB"`` or ``"USD/GiB-month"``.
    """

    provider: str
    region: str
    item: str
    tier: str
    price_usd: float
    unit: str
    as_of: str
    source: str
