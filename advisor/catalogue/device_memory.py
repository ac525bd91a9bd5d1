"""The memory of every accelerator: one table, read by the catalogue and the device sheet alike.

``memory_gib`` is what the driver lets one program allocate on a whole card, as CUDA's
``totalGlobalMem`` and PyTorch's "total capacity" say. A card "of 80 GB" has 80 GiB of chips; error
correction on GDDR cards takes a sixteenth, and the driver keeps some for itself. No margin is
taken off: the planners keep theirs.

===============  ===============================================================================
basis            how ``memory_gib`` follows
===============  ===============================================================================
cuda             the lowest reading of a program (drivers differ by up to 1 %)
nvidia-smi       the lowest total that ``nvidia-smi`` reports, less what the driver keeps
sold             the size sold in GiB, less a sixteenth where ``has_ecc_in_memory``, less what
                 the driver keeps
===============  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from advisor import data
from advisor.catalogue import files
from advisor.catalogue.tables import numbers, read, texts
from advisor.planners.core.units import GB, GIB

# What the driver keeps of the total of nvidia-smi: 0.6 to 2.2 % on the nine chips with both
# readings; the upper quartile. Cards of 8 and 11 GB keep 0.21 and 0.24 GiB (PyTorch's total
# capacity 7.79 and 10.76: github.com/ryujaehun/pytorch-gpu-benchmark/issues/1,
# github.com/RenYurui/StructureFlow/issues/35).
DRIVER_FRACTION: Final = 0.014
DRIVER_GIB: Final = 0.21
_ECC_SHARE: Final = 15 / 16  # GDDR: check bits lie among the data (T4: 15.0 of 16, L4: 22.5 of 24)


@cache
def device_memory_bytes() -> Mapping[str, float]:
    """Return what a program can allocate on each accelerator, by canonical name. [bytes].

    Raises CatalogueError if the table cannot be read or a cell breaks its rule.
    """
    path = data.root("datasets") / "catalogue" / files.ACCELERATOR_MEMORY_FILE
    table = read(path, files.ACCELERATOR_MEMORY)
    pairs = zip(texts(table, "name"), numbers(table, "memory_gib").tolist(), strict=True)
    return MappingProxyType({name: gib * GIB for name, gib in pairs})


def memory_bytes(name: str, sold_gb: float) -> float:
    """Return the memory of one accelerator [bytes]: the table's, else what is surely not too much.

    Parameters
    ----------
    sold_gb : float
        As sold; taken as 10^9 bytes each where the table does not have the name.
    """
    return device_memory_bytes().get(name, sold_gb * GB)


def memory_gib(
    *,
    sold_gb: float,
    nvidia_smi_gib: float | None,
    cuda_gib: float | None,
    has_ecc_in_memory: bool,
) -> tuple[float, str]:
    """Return the memory that follows from what was read, and its basis; see the module. [GiB].

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
