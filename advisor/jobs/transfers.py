"""Data that a job brings in, results that it takes out, and who said so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NOT_SEEN: Final = "not seen"
# From the request of a rented machine to the first line of the program: it boots within a minute
# (time to SSH of 5,000 Google machines 23-25 s, rule of thumb 1-2 min: Aboukhalil 2018; over
# 300,000 starts on AWS and Google: Hao et al., arXiv 2107.03467), and an image of 8 GB (PyTorch
# with CUDA, unpacked) takes another to be written to a plain volume (131 MB/s, ``data_in``). [s]
BOOT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """What a job moves."""

    # brought to every machine before its first step; None where it is unknown [bytes]
    data_bytes: float | None = None
    data_source: str = NOT_SEEN
    # most that the place where the data lies gives to one machine; None for no limit but the
    # machine's own [bytes/s]
    data_bytes_per_s: float | None = None
    # taken out of the cloud at the end; None for one checkpoint [bytes]
    result_bytes: float | None = None
    # from the request of a rented machine to the start of the program: boot and image; None where
    # nothing is rented [s]
    boot_s: float | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "data_bytes": self.data_bytes,
            "data_source": self.data_source,
            "data_bytes_per_s": self.data_bytes_per_s,
            "result_bytes": self.result_bytes,
            "boot_s": self.boot_s,
        }


def recorded_data(samples: int | None, sample_bytes: float | None) -> Transfers:
    """Return the data of a loader as far as it was seen: its samples as tensors.

    Decoded samples are larger than files that hold them compressed, so this errs upwards.
    """
    if not samples or not sample_bytes:
        return Transfers()
    return Transfers(
        data_bytes=samples * sample_bytes,
        data_source=f"recorded: {samples:,} samples of {sample_bytes:,.0f} bytes as tensors",
    )


# ------------------------------------------------------------------------------------------
# The time that a machine waits for its data before the first step.


Floats = NDArray[np.float64]

# What a plain block-storage volume takes: the baseline of AWS gp3, 125 MiB/s, likewise Azure P10
# and a Google balanced disk of a few hundred GB.
VOLUME_BYTES_PER_S: Final = 131e6


def data_in_s(transfers: Transfers, network_bytes_per_s: Floats) -> Floats:
    """Return the time to bring the data to machines with these networks [s]."""
    rate = np.minimum(network_bytes_per_s, VOLUME_BYTES_PER_S)
    if transfers.data_bytes_per_s is not None:
        rate = np.minimum(rate, transfers.data_bytes_per_s)
    return np.asarray((transfers.data_bytes or 0.0) / rate, dtype=float)
