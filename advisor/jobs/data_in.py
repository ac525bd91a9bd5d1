"""The time that a machine waits for its data before the first step."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.jobs.transfers import Transfers

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
