"""Accelerators: one row of ``accelerators.csv`` each, and what follows from it.

A row is what is sold; its device is what a program sees, of a board of two dies one of them.
Rates follow from its fields, what two cards reach from ``link_between``, what it can allocate from
``memory_gib``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from advisor import data
from advisor.answer import Recorded
from advisor.catalogue import files
from advisor.catalogue.select import key
from advisor.catalogue.tables import read_facts
from advisor.errors import CatalogueError, UsageError
from advisor.planners.core import GIB, Device

# Copies between host and device, measured on clouds (datasets/catalogue, nvbandwidth), by
# generation: V100 machines 11.1, A10G/L4 13.5, A100 PCIe 26.7, H100 machines 55 GB/s. [bytes/s]
_PCIE_BYTES_PER_S: Final = {3.0: 11.1e9, 4.0: 26.7e9, 5.0: 55.0e9, 6.0: 55.0e9}
# Without direct transfers a message between two cards crosses PCIe twice, through host memory.
_THROUGH_HOST: Final = 0.5
# What two cards reach of PCIe with direct transfers: the mean of L4 on GCP (10.1 of 12.35 GB/s)
# and RTX PRO 6000 on AWS (54 of 55.6), nvbandwidth. GeForce cards have none since Turing.
_PEER_TO_PEER: Final = 0.9
# Copies reach of Grace's own link what they reach of PCIe 5 (55 of 64 GB/s).
_COPIED_SHARE: Final = 0.86
# Of the vector units' peak, what elementwise arithmetic reaches: as the device model has it.
ELEMENTWISE_SHARE: Final = 0.2
# What a board takes without computing: an H100 idles at 70 to 90 of its 700 W. The rest goes with
# clock times voltage squared, and voltage with the clock.
_STATIC_SHARE: Final = 0.12
# Below about two fifths the voltage falls no further, and the law no longer holds.
_LEAST_POWER_SHARE: Final = 0.4
# ``generation`` of accelerators.csv -> index into ``planners.core.arrays.GENERATIONS``: whose
# tuned kernels a card runs.
_GENERATIONS: Final = {
    "": 0, "ampere": 1, "hopper": 2, "blackwell": 3, "blackwell-ultra": 3, "cdna": 4,
}  # fmt: skip
# Where nothing was measured: what the family's measured cards reach of their datasheet.
# Ampere/Ada: RTX-A6000 99 of 155; Hopper: H100 794.5 of 989; Blackwell: GB200 1822 of 2500 at
# 1200 W, and large products are bound by power; CDNA 3: MI300X 668 of 1307; older: V100 80 of 125,
# T4 21 of 65.
_MEASURED_SHARE: Final = (0.5, 0.65, 0.80, 0.73, 0.51)
_BLACKWELL_W: Final = 1200.0
_BLACKWELL: Final = 3  # of ``kernels``
# A B200's board, and the rate of its bursts (this catalogue's).
_B200_W, _B200_FLOP_PER_S = 1000.0, 1745e12
# What the driver keeps of the total of nvidia-smi: 0.6 to 2.2 % on the nine chips with both
# readings; the upper quartile. Cards of 8 and 11 GB keep 0.21 and 0.24 GiB (PyTorch's total
# capacity 7.79 and 10.76: github.com/ryujaehun/pytorch-gpu-benchmark/issues/1,
# github.com/RenYurui/StructureFlow/issues/35).
DRIVER_FRACTION: Final = 0.014
DRIVER_GIB: Final = 0.21
_ECC_SHARE: Final = 15 / 16  # GDDR: check bits lie among the data (T4: 15.0 of 16, L4: 22.5 of 24)
_UNLISTED: Final = "unlisted"  # ``training_use`` of cards that only runs are known of


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(Recorded):
    """One accelerator as it is sold and joined to others; None is unknown.

    What each field is stands in ``files.ACCELERATORS``, the columns of the table.
    """

    renamed: ClassVar[Mapping[str, str]] = {"device": ""}
    written: ClassVar[tuple[str, ...]] = (
        "device.memory_bytes_per_s", *(f"device.{one}_flop_per_s" for one in files.PEAKS),
        "memory_bytes", "is_checked",
    )  # fmt: skip

    name: str
    aliases: tuple[str, ...] = ()
    suite_names: tuple[str, ...] = ()
    vendor: str
    architecture: str
    generation: str = ""
    form: str = ""
    is_consumer: bool = False
    device: Device | None  # None where nobody states its arithmetic or bandwidth
    memory_gb: float
    memory_gib: float
    memory_basis: str
    int8_op_per_s: float | None = None
    # sustained_bf16_flop_per_s, sustained_fp8_flop_per_s: best measured rate of large products
    sustained_bf16_flop_per_s: float | None = None
    sustained_fp8_flop_per_s: float | None = None
    layer_flop_per_s: float | None = None
    tdp_w: float | None = None
    link: str = ""
    link_bytes_per_s: float | None = None
    link_devices: int | None = None
    chip_to_chip_bytes_per_s: float | None = None
    pcie_generation: float | None = None
    pcie_copy_bytes_per_s: float | None = None
    is_without_peers: bool = False
    compute_capability: float | None = None
    training_use: str = ""
    release_year: int | None = None
    vertex_name: str = ""
    source_1: str
    source_2: str = ""
    peak_source: str = ""
    sustained_source: str = ""
    as_of: str = ""
    # clock_share, card_share: what a power limit leaves of the clock, and the share of one card
    clock_share: float = 1.0
    card_share: float = 1.0

    @property
    def memory_bytes(self) -> float:
        """What one program can allocate, no margin taken off."""
        return self.memory_gib * GIB

    @property
    def is_checked(self) -> bool:
        """Whether a number was compared with a public source, or is from one itself.

        Rows typed from memory that nobody compared are not; nor is "the maker's datasheet, not
        looked up" a comparison.
        """
        looked_up = [part for part in self.source_2.split(" | ") if "not looked up" not in part]
        return "from memory" not in self.source_1 or any(
            part and not part.startswith("none found") for part in looked_up
        )

    @property
    def nominal_pcie_bytes_per_s(self) -> float | None:
        """Nominal rate of its 16 PCIe lanes, one direction: a ceiling, not a measurement.

        8 GT/s a lane in generation 3 with 128b/130b coding, doubled by each generation.
        """
        if self.pcie_generation is None:
            return None
        return 16 * 8e9 / 8 * (128 / 130) * math.pow(2.0, self.pcie_generation - 3)

    @property
    def kernels(self) -> int:
        """Index into ``planners.core.arrays.GENERATIONS``."""
        return _GENERATIONS[self.generation]

    @property
    def is_ultra(self) -> bool:
        """Blackwell Ultra."""
        return self.generation == "blackwell-ultra"

    def peak_flop_per_s(self, precision: str) -> float | None:
        """Return the dense peak that its maker states; None where none does."""
        peak: float | None = getattr(self.device, f"{precision}_flop_per_s", None)
        return peak

    @property
    def inferred_flop_per_s(self) -> float | None:
        """What large 16-bit products reach on one that was never measured [flop/s].

        None where nobody states a peak.
        """
        stated = map(self.peak_flop_per_s, ("bf16", "fp16", "fp32"))
        peak = next(filter(None, stated), None)
        if peak is None:
            return None
        power = (self.tdp_w or _BLACKWELL_W) / _BLACKWELL_W if self.kernels == 3 else 1.0
        return peak * _MEASURED_SHARE[self.kernels] * min(max(power, 0.8), 1.2)

    @property
    def _whole_flop_per_s(self) -> float | None:
        measured = self.sustained_bf16_flop_per_s or self.layer_flop_per_s
        return measured or self.inferred_flop_per_s

    @property
    def is_inferred(self) -> bool:
        """Whether nobody measured its large products.

        ``validate described`` takes measured rates away by putting the inferred ones in place.
        """
        return self._whole_flop_per_s == self.inferred_flop_per_s

    @property
    def flop_per_s(self) -> float:
        """Measured (or inferred) rate of large 16-bit products [flop/s]."""
        return (self._whole_flop_per_s or math.nan) * self.clock_share * self.card_share

    @property
    def elementwise_flop_per_s(self) -> float:
        """Arithmetic outside of products [flop/s]."""
        peak = self.peak_flop_per_s("fp32") or math.inf
        return ELEMENTWISE_SHARE * peak * self.clock_share * self.card_share

    @property
    def relative_power(self) -> float:
        """What its board may draw for every flop/s of a burst, over a B200's.

        1 where products are not bound by power: but on Blackwell, and on cards without NVLink.
        """
        watts = self.device.tdp_w if self.device else None
        if watts is None or self.kernels != _BLACKWELL or self.link_name == "pcie":
            return 1.0
        return watts * self.card_share / self.flop_per_s * _B200_FLOP_PER_S / _B200_W

    @property
    def memory_bytes_per_s(self) -> float:
        """Bandwidth of its memory."""
        return (self.device.memory_bytes_per_s if self.device else math.nan) * self.card_share

    @property
    def host_bytes_per_s(self) -> float:
        """Rate between host memory and one of them, per direction."""
        if self.chip_to_chip_bytes_per_s is not None:
            return _COPIED_SHARE * self.chip_to_chip_bytes_per_s
        return pcie_bytes_per_s(self.pcie_generation)

    @property
    def peer_bytes_per_s(self) -> float:
        """Rate between two of them in a machine of which nothing is said, per direction."""
        return link_between(self)[0]

    @property
    def link_name(self) -> str:
        """What joins two of them in a machine of which nothing is said."""
        return self.link.lower() if link_between(self)[1] else "pcie"

    def domain_machines(self, devices: int) -> int:
        """Return how many machines with so many devices the link joins: 1 where it ends there."""
        joined = self.link_devices if link_between(self)[1] else None
        return max((joined or 0) // devices, 1)

    def laid_out(self) -> Accelerator:
        """Return it, if models can be laid out on it.

        Raises CatalogueError if nobody states an arithmetic rate or memory bandwidth of it.
        """
        if self.device is None or not self._whole_flop_per_s:
            raise CatalogueError(
                f"the catalogue has no 16-bit rate or memory bandwidth of {self.name}",
                hint="choose an accelerator that trains in 16 bits, e.g. L4 or A100",
            )
        return self

    def limited(self, watts: float) -> Accelerator:
        """Return it under a power limit (``nvidia-smi --power-limit``): its clock falls.

        Raises UsageError if the limit is above what the board takes, or out of the law's reach.
        """
        device = self.laid_out().device
        full = device and device.tdp_w
        if device is None or not full:
            raise UsageError(f"the power of {self.name} is unknown", hint="leave the limit out")
        if not _LEAST_POWER_SHARE * full <= watts <= full:
            raise UsageError(
                f"a power limit of {watts:g} W is out of range for {self.name}",
                hint=f"write {_LEAST_POWER_SHARE * full:.0f}W to {full:.0f}W",
            )
        share = power_share(watts, full)
        rates = ("sustained_fp32_flop_per_s", "sustained_fp16_flop_per_s", "best_fp16_flop_per_s")
        slowed = {name: value * share for name in rates if (value := getattr(device, name))}
        return replace(self, clock_share=share, device=replace(device, tdp_w=watts, **slowed))

    def device_of_share(self, share: float) -> Device | None:
        """Return a share of one card as a device: that share of every rate and of the memory."""
        device = self.device
        if device is None or share >= 1.0:
            return device
        shared = {
            f.name: value * share
            for f in fields(Device)
            if f.name.endswith(("_per_s", "_bytes", "tdp_w"))
            and (value := getattr(device, f.name))
        }
        return replace(device, name=f"{self.name}/{1 / share:.3g}", **shared)


def power_share(watts: float, full_w: float) -> float:
    """Return the share of its rate that a power limit leaves a board: of its clock.

    >>> round(power_share(500, 700), 2), power_share(700, 700)
    (0.88, 1.0)
    """
    share = (watts / full_w - _STATIC_SHARE) / (1.0 - _STATIC_SHARE)
    return float(min(max(share, 0.0), 1.0) ** (1 / 3))


def pcie_bytes_per_s(generation: float | None) -> float:
    """Return what a card of a generation copies one way; an unknown one is the third [bytes/s]."""
    return _PCIE_BYTES_PER_S.get(generation or 3.0, _PCIE_BYTES_PER_S[3.0])


def link_between(
    row: Accelerator | None, link: str = "", *, host_bytes_per_s: float | None = None
) -> tuple[float, bool]:
    """Return what two cards of a machine reach, one way, and whether over links of their own.

    Bridges join pairs only: in a machine of four or eight most pairs have none, so they count
    where the machine is said to have them.

    Parameters
    ----------
    row : Accelerator or None
        None of a card that the catalogue does not have: no better than PCIe 3 through the host.
    link : str
        What is said of the machine: ``"pcie-host"`` (messages cross the host's memory), another
        ``"pcie..."``, or a link of the cards' own; of none, the card's usual one is taken.
    host_bytes_per_s : float, optional
        Measured between host and a card there; by the card's generation otherwise.
    """
    if row is None:
        return (host_bytes_per_s or pcie_bytes_per_s(None)) * _THROUGH_HOST, False
    has_own = bool(row.link_bytes_per_s) and (bool(link) or "bridge" not in row.link)
    if has_own and row.link_bytes_per_s and not link.startswith("pcie"):
        return float(row.link_bytes_per_s), True
    is_direct = link != "pcie-host" and not row.is_without_peers
    usual = row.pcie_copy_bytes_per_s or pcie_bytes_per_s(row.pcie_generation)
    pcie = host_bytes_per_s or usual
    return pcie * (_PEER_TO_PEER if is_direct else _THROUGH_HOST), False


def memory_gib(
    *, sold_gb: float, nvidia_smi_gib: float | None, cuda_gib: float | None,
    has_ecc_in_memory: bool,
) -> tuple[float, str]:  # fmt: skip
    """Return the memory that follows from what was read, and its basis. [GiB].

    It is what a program can allocate, as CUDA's ``totalGlobalMem`` and PyTorch's "total capacity"
    say. A card "of 80 GB" has 80 GiB of chips; error correction on GDDR cards takes a sixteenth,
    and the driver keeps some for itself. No margin is taken off: the planners keep theirs.

    ==========  ===============================================================================
    basis       how the memory follows
    ==========  ===============================================================================
    cuda        the lowest reading of a program (drivers differ by up to 1 %)
    nvidia-smi  the lowest total that ``nvidia-smi`` reports, less what the driver keeps
    sold        the size sold in GiB, less a sixteenth where ``has_ecc_in_memory``, less what
                the driver keeps
    ==========  ===============================================================================

    >>> memory_gib(sold_gb=16, nvidia_smi_gib=15.0, cuda_gib=14.75, has_ecc_in_memory=True)
    (14.75, 'cuda')
    """
    if cuda_gib is not None:
        return cuda_gib, "cuda"
    if nvidia_smi_gib is not None:
        return _less_driver(nvidia_smi_gib), "nvidia-smi"
    return _less_driver(sold_gb * (_ECC_SHARE if has_ecc_in_memory else 1.0)), "sold"


def _less_driver(total_gib: float) -> float:
    return round(total_gib - max(DRIVER_GIB, DRIVER_FRACTION * total_gib), 2)


@cache
def shipped() -> Mapping[str, Accelerator]:
    """Return every accelerator that the program knows, those that nobody sells among them.

    Raises CatalogueError if the table cannot be read or a cell breaks its rule.
    """
    return MappingProxyType(_read(_shipped_file()))


def _shipped_file() -> Path:
    return data.root("datasets") / "catalogue" / files.ACCELERATORS_FILE


def read_accelerators(folders: Sequence[Path]) -> Mapping[str, Accelerator]:
    """Read the table of the first folder that has it, and what its parts of other licences add.

    A table of before its columns were one (an old copy of a whole snapshot) is passed over.

    Raises CatalogueError if a file cannot be read or a cell breaks its rule.
    """
    path = next(filter(_is_whole, (one / files.ACCELERATORS_FILE for one in folders)), None)
    path = path or folders[0] / files.ACCELERATORS_FILE
    return shipped() if path == _shipped_file() else _read(path)


def _read(path: Path) -> dict[str, Accelerator]:
    beside = path.with_name(files.UNCONFIRMED_ACCELERATORS_FILE)
    rows = read_facts(path, files.ACCELERATORS)
    if _is_whole(beside):
        rows += read_facts(beside, files.ACCELERATORS)
    products = path.with_name(files.SHARE_ALIKE_ACCELERATORS_FILE)
    measured: dict[str, dict[str, Any]] = {}
    if products.is_file():
        for one in read_facts(products, files.SHARE_ALIKE_ACCELERATORS):
            measured[one.pop("name")] = one
    years: dict[str, float] = {}
    for row in rows:
        year, family = row["release_year"], row["architecture"]
        if year is not None:
            years[family] = min(year, years.get(family, year))
    return {
        row["name"]: _accelerator(
            row | measured.get(row["name"], {}), years.get(row["architecture"])
        )
        for row in rows
    }


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return "kind" in file.readline().split(",")


def _accelerator(row: Mapping[str, Any], year: float | None) -> Accelerator:
    """Return the row, whose chip family has a first card of that year."""
    dies = row["dies"] or 1.0
    gib, basis = memory_gib(
        sold_gb=row["memory_gb"] / dies,
        nvidia_smi_gib=row["nvidia_smi_gib"],
        cuda_gib=row["cuda_gib"],
        has_ecc_in_memory=row["has_ecc_in_memory"],
    )
    facts = dict(row) | {
        "memory_gib": gib,
        "memory_basis": basis,
        "link": "" if row["link"] == "none" else row["link"],
        "is_consumer": row["market"] == "consumer",
        "is_without_peers": row["pcie_peers"] == "no",
    }
    device = None
    if row["memory_bytes_per_s"] and any(row[f"{name}_flop_per_s"] for name in files.PEAKS):
        halved = {
            name: value / dies
            for name, value in row.items()
            if value and name.endswith(("_per_s", "tdp_w"))
        }
        of_die = facts | halved | {"memory_bytes": gib * GIB, "release_year": year}
        device = Device(**{f.name: of_die[f.name] for f in fields(Device) if f.name in of_die})
    own = {f.name: facts[f.name] for f in fields(Accelerator) if f.name in facts}
    found = Accelerator(**own, device=device)
    if device is None:
        return found
    return replace(found, device=replace(device, host_bytes_per_s=found.host_bytes_per_s))


def listed(rows: Mapping[str, Accelerator]) -> dict[str, Accelerator]:
    """Return the accelerators that a question may name: not those known from runs alone."""
    return {name: one for name, one in rows.items() if one.training_use != _UNLISTED}


def other_names(rows: Iterable[Accelerator]) -> dict[str, str]:
    """Return all names, folded for comparison, as a mapping to canonical ones.

    Raises CatalogueError if a name has two meanings.
    """
    out: dict[str, str] = {}
    for row in rows:
        for alias in (row.name, *row.aliases):
            if out.setdefault(key(alias), row.name) != row.name:
                raise CatalogueError(
                    f"{files.ACCELERATORS_FILE}, row of {row.name!r}, column 'aliases': {alias!r} "
                    f"already means {out[key(alias)]!r}",
                    hint="keep one of them",
                )
    return out
