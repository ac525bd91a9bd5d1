r"""Step time of data-parallel training: compute, hidden and exposed communication, stragglers.

=======================  ===============================================================
here                     meaning
=======================  ===============================================================
``micro_batch_s``        forward and backward of one micro-batch on one device [s]
``backward_s``           the backward part of it [s]
``accumulation_steps``   micro-batches before the gradients are exchanged, a
``gradient_bytes``       bytes of all gradients on one device, G
``nodes``                n, machines; ``devices_per_node`` g; workers K = n g
``buckets``              pieces b in which the gradients are exchanged while backward runs
=======================  ===============================================================

Step = a micro + optimizer + exposed + straggler. Bucket i of b equal ones is ready after
``i / b`` of the backward pass and goes over one channel in order, so the last one ends at
``max(B + C / b, B / b + C)`` for backward B and communication C: exposed is what is left after B.
Only a share of the backward pass hides anything in practice (``overlap_fraction``).

The slowest of unequal workers, what a synchronous step waits for, is ``expected_slowest``.

References
----------
.. [1] S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training,"
   VLDB 13(12), 2020. Section 3.2.3 (overlap by buckets), 4.2 (bucket size).
.. [2] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
   Models," SC'20. Section 7: communication volume by stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import refused
from advisor.planners.links.collectives import (
    CollectiveParameters,
    hierarchical_all_reduce_s,
    hierarchical_broadcast_s,
    hierarchical_reduce_scatter_s,
)

Array = NDArray[np.float64]

# Expected maximum of 2^0, 2^1, ... 2^14 standard normal variables, by quadrature of
# the integral of x d(Phi(x)^n); the test repeats the quadrature.
_EXPECTED_MAXIMUM = (
    0.0, 0.56419, 1.02938, 1.42360, 1.76599, 2.06967, 2.34373, 2.59460, 2.82686, 3.04390,
    3.24824, 3.44180, 3.62608, 3.80228, 3.97135,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingParameters:
    """Fitted constants of data-parallel scaling (``advisor train scaling``)."""

    collectives: CollectiveParameters
    bucket_bytes: float  # gradients exchanged in one call while backward runs [bytes]
    overlap_fraction: float  # share of the backward pass that hides communication, in [0, 1]
    # standard deviation over workers of one step's compute, as a fraction of it
    straggler_sd_fraction: float
    # standard deviation of log compute time from one device to many (host contention) [-]
    log_sd_compute: float
    # standard deviation of log communication time on a cluster that was never seen [-]
    log_sd_communication: float
    # added to it per doubling of the workers beyond ``fitted_workers`` [-]
    log_sd_per_doubling: float
    fitted_workers: float  # largest number of workers in the data of the fit

    def __post_init__(self) -> None:
        if not (self.bucket_bytes > 0 and 0 <= self.overlap_fraction <= 1):
            raise ValueError(f"impossible scaling parameters: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelColumns:
    """What a step takes, one entry a row; all of the broadcast shape."""

    # step_s, compute_s, communication_s, exposed_s, straggler_s: ``step_s`` is the sum of compute,
    # exposed and straggler [s]
    step_s: Array
    compute_s: Array
    communication_s: Array
    exposed_s: Array
    straggler_s: Array
    # standard deviation of log step time that scaling adds to that of the compute [-]
    log_sd: Array


def data_parallel_step(
    *, micro_batch_s: ArrayLike, backward_s: ArrayLike, optimizer_s: ArrayLike,
    accumulation_steps: ArrayLike, gradient_bytes: ArrayLike, nodes: ArrayLike,
    devices_per_node: ArrayLike, intra_bytes_per_s: ArrayLike, intra_latency_s: ArrayLike,
    network_bytes_per_s: ArrayLike, network_latency_s: ArrayLike, parameters: ScalingParameters,
    zero_stage: ArrayLike = 0, overlaps: ArrayLike = True, has_rdma: ArrayLike | None = None,
    buffer_bytes: ArrayLike = 0.0, is_pipelined: ArrayLike = True,
) -> DataParallelColumns:  # fmt: skip
    """Return the columns of a data-parallel step; every argument broadcasts.

    ``micro_batch_s``, ``backward_s``, ``optimizer_s``: forward and backward of one micro-batch;
    its backward part; the whole optimizer update on one device (ZeRO stages shard it here) [s];
    ``intra_...``, ``network_...``: nominal links, between two devices of a node, and the node's
    network interface; ``overlaps``: False where nothing runs beside the backward pass (e.g. all
    cores are busy computing); ``has_rdma``: whether the network bypasses the kernel; None means:
    by the interface's rate; ``buffer_bytes``, ``is_pipelined``: the modules' buffers, which
    replicas (``zero_stage`` 0) get from rank 0 before the first forward pass of a step [bytes];
    how, see ``hierarchical_broadcast_s``. Nothing hides it.

    Raises ValueError if a count is below one, a size negative, or a rate not positive.
    """
    workers = np.asarray(nodes, float) * np.asarray(devices_per_node, float)
    stage = np.asarray(zero_stage, int)
    steps = np.asarray(accumulation_steps, float)
    compute = steps * np.asarray(micro_batch_s, float) + np.asarray(optimizer_s, float) / np.where(
        stage > 0, workers, 1.0
    )
    buckets = np.maximum(1.0, np.ceil(np.asarray(gradient_bytes, float) / parameters.bucket_bytes))
    links = (
        devices_per_node,
        nodes,
        intra_bytes_per_s,
        intra_latency_s,
        network_bytes_per_s,
        network_latency_s,
        parameters.collectives,
    )
    bucket_bytes = np.asarray(gradient_bytes, float) / buckets
    one_way = buckets * hierarchical_reduce_scatter_s(bucket_bytes, *links, has_rdma=has_rdma)
    both_ways = buckets * hierarchical_all_reduce_s(bucket_bytes, *links, has_rdma=has_rdma)
    before = _before_last_backward_s(one_way, steps, stage)
    during = np.where(stage == 0, both_ways, one_way * np.where(stage == 3, 2.0, 1.0))
    after = np.where((stage == 1) | (stage == 2), one_way, 0.0)
    hiding_fraction = parameters.overlap_fraction * np.asarray(overlaps, bool)
    backward = hiding_fraction * np.asarray(backward_s, float)
    forward = hiding_fraction * (np.asarray(micro_batch_s, float) - backward_s)
    earlier = (steps - 1.0) * backward + np.where(stage == 3, steps * forward, 0.0)
    exposed = exposed_s(during, backward, buckets) + after + np.maximum(0.0, before - earlier)
    handed = hierarchical_broadcast_s(
        buffer_bytes, *links, has_rdma=has_rdma, is_pipelined=is_pipelined
    )
    handed = np.where(stage == 0, handed, 0.0)
    exposed = exposed + handed
    before = before + handed
    straggler = compute * (straggling(workers, parameters) - 1.0)
    step = compute + exposed + straggler
    return DataParallelColumns(
        step_s=step,
        compute_s=np.broadcast_to(compute, step.shape),
        communication_s=np.broadcast_to(before + during + after, step.shape),
        exposed_s=np.broadcast_to(exposed, step.shape),
        straggler_s=np.broadcast_to(straggler, step.shape),
        log_sd=_log_sd(workers, (before + during + after) / step, parameters),
    )


def exposed_s(communication_s: ArrayLike, backward_s: ArrayLike, buckets: ArrayLike) -> Array:
    r"""Return what is left of the communication when the backward pass has ended [s].

    .. math:: \max(C / b,\; C - B (1 - 1 / b))

    Equal buckets, one channel, in the order in which the backward pass produces them ([1]_,
    section 3.2.3). One bucket hides nothing.

    Examples
    --------
    >>> float(exposed_s(1.0, 4.0, 4)), float(exposed_s(8.0, 4.0, 4)), float(exposed_s(1.0, 4.0, 1))
    (0.25, 5.0, 1.0)
    """
    c, b = np.asarray(communication_s, float), np.asarray(buckets, float)
    hidden = np.asarray(backward_s, float) * (1.0 - 1.0 / b)
    return np.asarray(np.maximum(c / b, c - hidden))


def straggling(workers: ArrayLike, parameters: ScalingParameters) -> Array:
    """Return by what the slowest of so many equal workers takes longer than one alone."""
    return np.asarray(1.0 + parameters.straggler_sd_fraction * expected_maximum(workers))


def expected_maximum(workers: ArrayLike) -> Array:
    """Return the expected maximum of so many standard normal variables.

    A step waits for its slowest worker. Interpolated in log2; beyond 16,384 workers the last
    slope goes on.

    Examples
    --------
    >>> expected_maximum([1, 2, 16]).round(3).tolist()
    [0.0, 0.564, 1.766]
    """
    doublings = np.log2(np.asarray(workers, float))
    last = len(_EXPECTED_MAXIMUM) - 1
    slope = _EXPECTED_MAXIMUM[-1] - _EXPECTED_MAXIMUM[-2]
    inside = np.interp(doublings, np.arange(last + 1), _EXPECTED_MAXIMUM)
    return np.asarray(inside + slope * np.maximum(doublings - last, 0.0))


def _before_last_backward_s(one_way: Array, steps: Array, stage: NDArray[np.int_]) -> Array:
    """Communication before the last backward pass ([2]_, section 7) [s].

    Stage 2 scatters the gradients after each micro-batch; stage 3 gathers the parameters for each
    forward and each backward besides: 3 a volumes, of which two fall into the last backward.
    """
    return np.where(
        stage == 3, one_way * (3.0 * steps - 2.0), np.where(stage == 2, one_way * (steps - 1.0), 0)
    )


def _log_sd(workers: Array, communication_fraction: Array, parameters: ScalingParameters) -> Array:
    """Uncertainty that scaling adds: that of the communication counts by its share of the step.

    Hidden communication counts too: it comes to light where the link is slower than thought.
    """
    beyond = np.maximum(0.0, np.log2(workers / parameters.fitted_workers))
    communication = parameters.log_sd_communication + parameters.log_sd_per_doubling * beyond
    compute = np.where(workers > 1.0, parameters.log_sd_compute, 0.0)
    return np.hypot(compute, communication_fraction * communication)


Column = NDArray[np.float64]


def expected_slowest(times: Sequence[ArrayLike]) -> float:
    """Return the expected time of the slowest of unequal workers, independent of one another.

    ==================  ===========================================================================
    here                meaning, unit
    ==================  ===========================================================================
    ``times``      t_i  what was seen of worker i, or is forecast of it: any number of values. [s]
    ``F_i``             their distribution function, each value as likely as the others.
    ==================  ===========================================================================

        E[max_i t_i] = integral of (1 - product_i F_i(x)) dx, from the least value on

    for workers that are slow independently of one another: exact for the values given, in
    O(N log N), no draw and no normal curve. The same of equal normal workers is
    ``expected_maximum``, in closed form.

    ``times``: one array a worker: its possible times, equally likely; of any length [s].

    Raises PlanningError if there is no worker, or one has no time or one that is no number.

    Returns
    -------
    float
        At least the largest of the means, at most the largest value. [s]

    Examples
    --------
    >>> expected_slowest([[1.0, 3.0], [2.0]])
    2.5
    """
    workers = _checked(times)
    values = np.unique(np.concatenate(workers))
    below = np.ones(values.size)
    for one in workers:
        below *= np.searchsorted(np.sort(one), values, side="right") / one.size
    return float(values[0] + np.dot(1.0 - below[:-1], np.diff(values)))


def loss_to_slowest(times: Sequence[ArrayLike]) -> float:
    """Return the share of a step that the median worker waits for the slowest [fraction]."""
    slowest = expected_slowest(times)
    median = float(np.median([np.median(np.asarray(one, float)) for one in times]))
    return max(0.0, 1.0 - median / slowest) if slowest > 0 else 0.0


def _checked(times: Sequence[ArrayLike]) -> list[Column]:
    workers = [np.asarray(one, float).ravel() for one in times]
    if not workers or any(one.size == 0 or not np.all(np.isfinite(one)) for one in workers):
        raise refused(
            "the slowest worker of none, or of workers without times, is not defined",
            "give each worker at least one time",
        )
    return workers
