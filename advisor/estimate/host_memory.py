"""Main memory that the processes of a machine's ranks take, beside what is offloaded to it.

==============  ==================================================================================
one process     main memory
==============  ==================================================================================
on accelerators what a recorded process held beside its tensors, else Python and PyTorch; the
                kernels and libraries of CUDA; a file of weights while they are loaded; its
                loaders' own pages
on processors   as large as the recorded one (a described one: ``planners.memory``)
==============  ==================================================================================
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.collectors.derive import advised_memory_bytes
from advisor.jobs import Job
from advisor.machines import Fleet
from advisor.planners.core import GIB, MIB, Work

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# A process that has trained on a processor: 302 MiB resident with PyTorch 2.13 on Linux, 214 MiB
# of it not shared with others (measured 2026-11-28); a loader's own and its part of what it
# shares: 83 MiB.
_PYTORCH_BYTES: Final = 302 * MIB
_LOADER_BYTES: Final = 83 * MIB
# With CUDA such a process holds 1.8 to 2.0 GiB: github.com/pytorch/pytorch/issues/12873 (1,873
# MiB), 19397 (2 GB), 113326 (2,056,600 kB). Processes share none of it
# (github.com/tensorflow/tensorflow/issues/36459).
_CUDA_BYTES: Final = 2.0 * GIB - _PYTORCH_BYTES
# Weights are read file by file: transformers writes files of at most 5 GB (``max_shard_size``).
_MOST_LOADED_BYTES: Final = 5e9


def host_process_bytes(job: Job, work: Work) -> float:
    """Return the main memory that the process of one rank on an accelerator takes [bytes]."""
    own = float(_PYTORCH_BYTES)
    if job.peak_rss_bytes:
        own = advised_memory_bytes(int(_beside_tensors_bytes(job, work)))
    loading = min(work.parameter_bytes, _MOST_LOADED_BYTES)
    return own + _CUDA_BYTES + loading + job.feed.workers * _LOADER_BYTES


def host_needed_bytes(job: Job, work: Work, fleet: Fleet, type_index: Integers) -> Floats:
    """Return the main memory that the processes of one machine of each type take [bytes]."""
    each = np.where(
        fleet.is_accelerated[type_index],
        host_process_bytes(job, work),
        advised_memory_bytes(job.peak_rss_bytes),
    )
    return np.asarray(each * fleet.per_node[type_index], dtype=float)


def host_fits(job: Job, work: Work, fleet: Fleet, type_index: Integers) -> NDArray[np.bool_]:
    """Whether main memory holds the processes of a machine."""
    needed = host_needed_bytes(job, work, fleet, type_index)
    return np.asarray(needed <= fleet.host_memory_bytes[type_index])


def host_room_bytes(job: Job, work: Work, fleet: Fleet, row: int) -> float:
    """Return what the processes leave of a machine's main memory: for offloading [bytes]."""
    needed = host_needed_bytes(job, work, fleet, np.array([row]))
    return max(float(fleet.host_memory_bytes[row] - needed[0]), 0.0)


def _beside_tensors_bytes(job: Job, work: Work) -> float:
    """Return what a recorded process took of main memory beside its tensors [bytes]."""
    tensors = work.parameter_bytes * 2 + work.optimizer_state_bytes
    tensors += work.saved_bytes_per_sample * job.recorded_batch
    return max(job.peak_rss_bytes - tensors, 0.3 * job.peak_rss_bytes)
