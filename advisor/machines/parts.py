"""Accelerators of the catalogue as the layout planner needs to know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from advisor.catalogue import Accelerator
from advisor.errors import CatalogueError
from advisor.machines import devices
from advisor.machines.pcie import link_between, pcie_bytes_per_s
from advisor.planners.core.nouns import Device

# Whose tuned kernels a card runs (``planners.core.columns.GENERATIONS``).
_GENERATIONS: Final = {"Ampere": 1, "Ada": 1, "Hopper": 2, "Blackwell": 3, "Blackwell Ultra": 3}
# Cards of which the catalogue has no measured large product: forward rate of a transformer layer
# in 16 bits, median over models (Cephalo's and Zorse's profiles, MIT). The layout model's
# constants were fitted with these and the catalogue's rates: a change here asks for a new fit.
# [flop/s]
_LAYER_FLOP_PER_S: Final = {
    "V100-SXM2-16GB": 80e12,
    "V100-SXM2-32GB": 80e12,
    "V100-PCIe-16GB": 67e12,
    "V100-PCIe-32GB": 67e12,
    "T4": 21e12,
    "L4": 47e12,
    "A10G": 55e12,
    "RTX-A6000": 99e12,
    "H100-NVL-94GB": 380e12,
}
# Where nothing was measured: what the family's measured cards reach of their datasheet.
# Ampere/Ada: RTX-A6000 99 of 155; Hopper: H100 794.5 of 989; Blackwell: GB200 1822 of 2500 at
# 1200 W, and large products are bound by power; older: V100 80 of 125, T4 21 of 65.
_MEASURED_SHARE: Final = {0: 0.5, 1: 0.65, 2: 0.80, 3: 0.73}
_BLACKWELL_W: Final = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorPart:
    """One accelerator."""

    name: str
    flop_per_s: float  # measured (or inferred) rate of large 16-bit products [flop/s]
    is_inferred: bool
    memory_bytes: float
    memory_bytes_per_s: float
    link_name: str
    link_bytes_per_s: float  # between two of them in a machine, per direction [bytes/s]
    host_bytes_per_s: float  # between host memory and one of them [bytes/s]
    generation: int  # index into ``planners.core.columns.GENERATIONS``
    device: Device  # all that the device model knows of it
    # devices that the link joins across machines; None where it ends with the machine
    link_devices: int | None = None

    def domain_machines(self, devices: int) -> int:
        """Return how many machines with so many devices the link joins: 1 where it ends there."""
        return max((self.link_devices or 0) // devices, 1)


def part(row: Accelerator) -> AcceleratorPart:
    """Return an accelerator of the catalogue as the planners need it.

    Raises CatalogueError if the catalogue has no arithmetic rate or memory bandwidth of it.
    """
    measured = row.sustained_bf16_flop_per_s or _LAYER_FLOP_PER_S.get(row.name)
    generation = _GENERATIONS.get(row.architecture, 0)
    rate = measured or inferred_flop_per_s(row)
    device = devices.catalogue_device(row)
    if not rate or not row.memory_bytes_per_s or device is None:
        raise CatalogueError(
            f"the catalogue has no 16-bit rate or memory bandwidth of {row.name}",
            hint="choose an accelerator that trains in 16 bits, e.g. L4 or A100",
        )
    between, is_linked = link_between(row)
    return AcceleratorPart(
        name=row.name,
        flop_per_s=rate,
        # ``validate described`` takes measured rates away by putting the inferred ones in place.
        is_inferred=rate == inferred_flop_per_s(row),
        memory_bytes=row.memory_bytes,
        memory_bytes_per_s=row.memory_bytes_per_s,
        link_name=row.link.lower() if is_linked else "pcie",
        link_bytes_per_s=between,
        host_bytes_per_s=pcie_bytes_per_s(row.pcie_generation),
        generation=generation,
        device=device,
        link_devices=row.link_devices if is_linked else None,
    )


def inferred_flop_per_s(row: Accelerator) -> float | None:
    """Return what large 16-bit products reach on an accelerator that was never measured.

    None where the catalogue has no peak of it. [flop/s]
    """
    generation = _GENERATIONS.get(row.architecture, 0)
    peak = row.bf16_flop_per_s or row.fp16_flop_per_s or row.fp32_flop_per_s
    if peak is None:
        return None
    power = (row.tdp_w or _BLACKWELL_W) / _BLACKWELL_W if generation == 3 else 1.0
    return peak * _MEASURED_SHARE[generation] * min(max(power, 0.8), 1.2)
