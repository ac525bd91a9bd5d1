"""What cards reach over PCIe."""

from __future__ import annotations

from typing import Final

# Copies between host and device, measured on clouds (datasets/catalogue, nvbandwidth), by
# generation: V100 machines 11.1, A10G/L4 13.5, A100 PCIe 26.7, H100 machines 55 GB/s. [bytes/s]
_BYTES_PER_S: Final = {3.0: 11.1e9, 4.0: 26.7e9, 5.0: 55.0e9, 6.0: 55.0e9}
# Without direct transfers a message between two cards crosses PCIe twice, through host memory.
THROUGH_HOST: Final = 0.5


def pcie_bytes_per_s(generation: float | None) -> float:
    """Return what a card of a generation copies one way; an unknown one is the third [bytes/s]."""
    return _BYTES_PER_S.get(generation or 3.0, _BYTES_PER_S[3.0])
