"""Bounds from below on a step over groups of unlike machines, whatever the way; for pruning.

| here       | meaning                                                                          |
|------------|----------------------------------------------------------------------------------|
| ``B``      | samples of a step                                                                |
| ``W_k``    | devices of a group                                                               |
| ``t_k(v)`` | a group's device-seconds of unit v of one sample, at the best micro-batch        |
| ``p_v``    | weight of a unit: the mean over devices of t(v)                                  |

    step >= B sum_v p_v / sum_k W_k max_v p_v / t_k(v)

Every sample passes every unit somewhere, and no device computes for longer than the step: the sum
over units, weighted by p, of what devices can do in a step is at most that. Where devices hold the
whole model, or where all units are alike, there is one unit and the bound is the even share.
A step also holds at least one micro-batch, the units each on the device that is fastest for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.knowledge.laws import operator_units
from advisor.estimate.ways.model_parallel import on_machine
from advisor.planners.core import RECOMPUTES, Layouts
from advisor.planners.layouts import LayoutProblem, SearchSpace, data_parallel_s, divisors, fixed_s
from advisor.planners.links import tensor_parallel_s
from advisor.planners.step import block_times

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ONE: Final = Layouts(dp=1, tp=1, pp=1, micro_batch=1, accumulation_steps=1, shard_group=1)
# What the first micro-batch of a step takes more is next to nothing of a sample.
_ENDLESS: Final = replace(_ONE, accumulation_steps=np.inf)


def least_group_step_s(case: StepCase, types: Integers, counts: Integers) -> Floats:
    """Return a bound from below on the step; inf where the state cannot fit [s].

    ``types``, ``counts``: (n, k); rows of the fleet's accelerated types, and machines of each; 0
    where a row has no more.
    """
    fleet = case.fleet
    used = np.unique(types[counts > 0])
    if used.size == 0:
        return np.zeros(len(types))
    place = np.searchsorted(used, np.where(counts > 0, types, used[0]))
    devices = fleet.per_node[used][place] * counts
    if is_laid_out_by_shape(case, used).all():
        return _of_shapes(case, used, place, devices)
    each, whole, passed = _unit_s(case, used)
    is_there = counts > 0
    # Stages of one device each are what a released framework runs of a model in units.
    is_single = ((fleet.per_node[used][place] == 1) | ~is_there).all(axis=1)
    is_single &= case.work.transformer is None
    weight = each.mean(axis=0)
    in_stages = (weight / each).max(axis=1) / weight.sum()
    rate = np.where(is_single[:, None], in_stages[place], 1.0 / whole[place])
    least_s = case.job.global_batch / (rate * devices).sum(axis=1)
    once = np.where(is_there, passed.sum(axis=1)[place], 0.0).max(axis=1)
    return np.asarray(np.maximum(least_s, np.where(is_single, passed.min(axis=0).sum(), once)))


def _unit_s(case: StepCase, used: Integers) -> tuple[Floats, Floats, Floats]:
    """Return least device-seconds of a sample, by unit and in all, and of a micro-batch [s].

    Between the points times are straight lines: a sample takes least at one of them.
    """
    model = operator_units(case)
    each, whole, passed = [], [], []
    for row in used.tolist():
        times = model.times(case.fleet.devices[case.fleet.device[row]])
        inside = times.micro_batches < 2 * case.job.global_batch
        both = (times.forward_s + times.backward_s)[inside]
        of_sample = both / times.micro_batches[inside, None]
        each.append(of_sample.min(axis=0))
        whole.append(of_sample.sum(axis=1).min())
        passed.append(both.min(axis=0) / model.widest)  # blocks may be divided
    return np.stack(each), np.array(whole), np.stack(passed)


def _of_shapes(case: StepCase, used: Integers, place: Integers, devices: Integers) -> Floats:
    problems = [on_machine(case, row).problem for row in used.tolist()]
    rate = 1.0 / np.array([p.least_device_s_per_sample() for p in problems])
    least_s = case.job.global_batch / (rate[place] * devices).sum(axis=1)
    started = [p.transformer.layers * float(block_times(p.case(_ONE)).launch_s) for p in problems]
    held = np.array([p.capacity_bytes - p.memory.context_bytes for p in problems])
    holds = (held[place] * devices).sum(axis=1) >= problems[0].least_state_bytes()
    return np.where(holds, np.maximum(least_s, min(started)), np.inf)


def refined_step_s(case: StepCase, types: Integers, counts: Integers, least_s: Floats) -> Floats:
    """Return the bounds of ``least_group_step_s`` raised by what the links take; for few rows [s].

    A transformer's step is that of uneven batches, whose reduction hides behind computing at most,
    of stages of one width, which send every micro-batch over their own network, or of equal
    shares, for which the slowest device computes longest.
    """
    used = np.unique(types[counts > 0])
    if used.size == 0 or not is_laid_out_by_shape(case, used).all():
        return least_s
    is_there = counts > 0
    place = np.searchsorted(used, np.where(is_there, types, used[0]))
    devices = case.fleet.per_node[used][place] * counts
    problems = [on_machine(case, row).problem for row in used.tolist()]
    layers = np.array([1.0 / _least_layers_s(p) for p in problems])
    in_stages = case.job.global_batch / (layers[place] * devices).sum(axis=1)
    in_stages = in_stages + _least_sent_s(case, problems, place, counts)
    uneven = _least_uneven_s(case, problems, place, counts, devices)
    each = np.array([p.least_device_s_per_sample() for p in problems])
    slowest = np.where(is_there, each[place], 0.0).max(axis=1)
    even = case.job.global_batch * slowest / devices.sum(axis=1)
    ways = np.minimum(np.minimum(uneven, in_stages), even)
    return np.asarray(np.maximum(least_s, ways))


def _least_layers_s(problem: LayoutProblem) -> float:
    """Return a sample's least device-seconds in all layers, in stages of one width [s]."""
    per_node, shape = int(problem.machines.devices_per_node), problem.transformer
    degrees = np.array([d for d in divisors(per_node) if shape.heads % d == 0])
    tp, micro = (
        x.ravel() for x in np.meshgrid(degrees, np.arange(1, SearchSpace().max_micro_batch + 1))
    )
    layouts = replace(_ENDLESS, tp=tp, pp=2, micro_batch=micro, is_sequence_parallel=tp > 1)
    case = problem.case(layouts)
    inside = tensor_parallel_s(case)
    each = block_times(case).busy_s(inside) + inside
    return float((shape.layers * each * tp / micro).min())


def _least_uneven_s(
    case: StepCase, problems: list[LayoutProblem], place: Integers, counts: Integers,
    devices: Integers,
) -> Floats:  # fmt: skip
    batch, one = case.job.global_batch, problems[0]
    rate = np.array([1.0 / _least_whole_s(p, batch) for p in problems])
    computed = batch / (rate[place] * devices).sum(axis=1)
    workers, nodes = devices.sum(axis=1), counts.sum(axis=1)

    def slowest(name: str) -> Floats:
        column = np.array([float(getattr(p.machines, name)) for p in problems])
        return np.asarray(np.where(counts > 0, column[place], np.inf).min(axis=1))

    machines = replace(
        one.machines,
        intra_bytes_per_s=slowest("intra_bytes_per_s"),
        network_bytes_per_s=slowest("network_bytes_per_s"),
        domain_machines=slowest("domain_machines"),
        devices_per_node=workers / nodes,
    )
    exposed = np.full(computed.shape, np.inf)
    capacity = np.array([p.capacity_bytes for p in problems])
    room = np.where(counts > 0, capacity[place], np.inf).min(axis=1)
    for zero in case.space.zero_stages:
        layouts = replace(_ONE, dp=workers, shard_group=workers, zero_stage=zero)
        ring = replace(one.case(layouts), machines=machines)
        least = replace(layouts, recompute=RECOMPUTES.index("full"))
        fits = one.needed_bytes(least) <= room
        found = data_parallel_s(ring, computed, computed)
        exposed = np.minimum(exposed, np.where(fits, found, np.inf))
    whole = computed + exposed + float(fixed_s(one))
    return np.asarray(whole * (1.0 + one.parameters.straggler * np.log2(nodes)))


def _least_whole_s(problem: LayoutProblem, batch: int) -> float:
    """Return the least device-seconds of a sample through the whole model on one device [s]."""
    micro = np.array([float(2**k) for k in range(17) if 2**k < 2 * batch])
    block = block_times(problem.case(replace(_ENDLESS, micro_batch=micro)))
    busy = problem.transformer.layers * block.busy_s() + block.head_s
    return float((busy / micro).min())


def _least_sent_s(
    case: StepCase, problems: list[LayoutProblem], place: Integers, counts: Integers
) -> Floats:
    """Return what stages of one width send at least: through all interfaces of their group."""
    of_type = [
        4 * case.job.global_batch * float(p.transformer.sequence) * p.transformer.hidden
        / (p.parameters.pp_efficiency * float(p.machines.network_bytes_per_s))
        for p in problems
    ]  # fmt: skip
    each = np.array(of_type)[place] / np.maximum(counts, 1)
    return np.asarray(np.where(counts > 0, each, 0.0).max(axis=1))
