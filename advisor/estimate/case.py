"""What a way of training needs to know: the job, the machines as columns, what was measured.

``Constants`` come from the files of ``trained_models`` as the planners' frozen records;
``Anchors`` are measured steps against what the model says of them: the host's own, and real runs
elsewhere; ``StepCase`` holds all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import fitted
from advisor.catalogue import Accelerator, TypeColumns
from advisor.collectors.derive import MOST_RATIO, ratio
from advisor.estimate.knowledge.layout_model import LayoutModel, load
from advisor.estimate.time_columns import CODE, TimeColumns, no_times
from advisor.jobs import ACTUAL_LOG_SD, CALL_S, Job, call_s_on, data_in_s
from advisor.machines import (
    calibration_parameters,
    device_parameters,
    host_device,
    host_holds,
    lacks_vcpus,
    residual_parameters,
)
from advisor.planners.core import Device, Work
from advisor.planners.layouts import RENTED, SearchSpace
from advisor.planners.links import ScalingParameters
from advisor.planners.memory import MemoryParameters
from advisor.planners.step import (
    CalibrationParameters,
    DeviceParameters,
    Devices,
    ExpectedErrors,
    OtherJobs,
    ResidualParameters,
    all_heard,
    are_measured,
    at_batch,
    calibrated_work,
    conditioned,
    correlations,
    errors_on,
    expected_error,
    expected_errors,
    features,
    is_known_by_runs,
    relative_speed,
    shared_with,
    step_time,
    work_from_runs,
)
from advisor.planners.systems import RankSpread, per_doubling
from advisor.quantities import REACH_90

if TYPE_CHECKING:
    from advisor.estimate.knowledge.own_runs import Believed, Key, OwnLayouts
    from advisor.planners.links import ScalingFit


DIGITS = 5  # significant: fits converge further, readings are less certain


def scaling(folder: Path | None = None) -> ScalingParameters:
    """Read the constants of data-parallel scaling; ``folder`` replaces the packaged one."""
    file = (folder or data.model("scaling")) / "parameters.json"
    return fitted(ScalingParameters, file, part="parameters", train="scaling")


def memory(folder: Path | None = None) -> MemoryParameters:
    """Read the constants of the memory model; ``folder`` replaces the packaged one."""
    file = (folder or data.root("trained_models") / "memory") / "parameters.json"
    return fitted(MemoryParameters, file, part="parameters", train="memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Parameter records of the planners."""

    device: DeviceParameters
    residual: ResidualParameters
    calibration: CalibrationParameters
    scaling: ScalingParameters
    memory: MemoryParameters
    layout: LayoutModel

    def with_slack(self, slack: float | None) -> Constants:
        """Return the constants of a job whose allocator's segments were replayed; None: fitted."""
        if slack is None:
            return self
        return replace(self, memory=replace(self.memory, slack=slack, is_replayed=True))

    def with_spread(self, spread: RankSpread | None) -> Constants:
        """Return the constants of a job whose ranks were seen: the one place of stragglers.

        The laws of other jobs' clusters take a spread by their own constants: a deviation over
        workers, or a slowdown by doubling of the nodes.
        """
        if spread is None:
            return self
        sd = spread.with_prior(self.scaling.straggler_sd_fraction)
        parameters = replace(self.layout.parameters, straggler=per_doubling(sd))
        return replace(
            self,
            scaling=replace(self.scaling, straggler_sd_fraction=sd),
            layout=replace(self.layout, parameters=parameters),
        )


@cache
def constants() -> Constants:
    """Read the shipped constants.

    Raises ModelError if one of them cannot be read.
    """
    return Constants(
        device=device_parameters(),
        residual=residual_parameters(),
        calibration=calibration_parameters(),
        scaling=scaling(),
        memory=memory(),
        layout=load(),
    )


Floats = NDArray[np.float64]
Law = Literal["operators", "transformer shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """Measured steps beside the model's predictions of them, one entry a measurement."""

    # coreMark per virtual CPU of the recorded host; None where it was not measured [1/s]
    core_speed: float | None
    # predicted_s, measured_s: step on the device, without waiting for data [s]
    predicted_s: tuple[float, ...] = ()
    measured_s: tuple[float, ...] = ()
    # measured_log_sd, device_log_sd: errors of their logarithms
    measured_log_sd: tuple[float, ...] = ()
    device_log_sd: tuple[float, ...] = ()
    # what not knowing the host that started each would have added, in its batch
    host_log_sd: tuple[float, ...] = ()
    devices: tuple[Device, ...] = ()  # where each was measured
    host: Device | None = None  # what the recorded job computed on
    # the job's: what published steps of jobs like it say of GPUs is heard. None for the bare
    # model.
    work: Work | None = None
    # devices that shared each step, of a job that is known by its runs alone
    workers: tuple[int, ...] = ()
    others: OtherJobs | None = None  # other jobs' runs, where the job is known by its runs alone

    def unheard(self, targets: Sequence[Device], constants: Constants) -> Floats:
        """Return the share of what nobody knows of a target's host that the job's runs leave open.

        One without runs on GPUs; where the job ran on the very card, what two machines differ by.
        """
        seen = [d for d in self.devices if d.kind != "cpu"]
        if not seen:
            return np.ones(len(targets))
        told = correlations(targets, seen, constants.calibration).max(axis=1)
        return np.asarray(np.sqrt(np.maximum(1.0 - np.square(told), 0.0)))

    def size_log_sd(self, workers: NDArray[np.int64]) -> Floats:
        """Return what other numbers of devices than those of the runs add to ln(step)'s error.

        Zero unless the job is known by its runs alone.
        """
        if not self.workers:
            return np.zeros(len(workers))
        doublings = np.abs(np.log2(np.asarray(workers)[:, None] / np.array(self.workers)))
        return np.asarray(_OF_A_DOUBLING * doublings.min(axis=1))

    def calibration(
        self, targets: Sequence[Device], log_sd: Floats, constants: Constants,
        law: Law = "operators",
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Return what to add to ln(predicted) on each target, and the error that remains.

        On GPUs by the process of the device model's errors: published steps of jobs like this
        one, and this job's own steps on other GPUs. On all other devices by the steps measured.

        ``log_sd``: (n_targets,); of the bare law; ``law``: which was asked: published steps say
        how far the operators' law is off, not the other.
        """
        factor, left = np.zeros(len(targets)), np.array(log_sd, dtype=float)
        targets = Devices.of(targets)
        is_heard = (targets.word("kind") == "gpu") & (self.work is not None)
        rest, gpus = np.flatnonzero(~is_heard), np.flatnonzero(is_heard)
        if self.devices and rest.size:
            on = targets.take(rest)
            factor[rest], left[rest] = calibrated_work(
                self.predicted_s, self.measured_s, self.measured_log_sd, self.devices,
                self.device_log_sd, on, left[rest], constants.calibration,
            )  # fmt: skip
        if gpus.size:
            on = targets.take(gpus)
            found = self._by_process(on, left[gpus], constants, law)
            # The last bits depend on which other devices are asked about: one has one answer.
            factor[gpus], left[gpus] = (np.round(one, _DECIMALS) for one in found)
        self._hear_others(targets, factor, left)
        return factor, left

    def _hear_others(self, targets: Sequence[Device], factor: Floats, left: Floats) -> None:
        """Put what other jobs' runs on a target say in place of what is thought without them."""
        if self.others is None or self.work is None:
            return
        for row, target in enumerate(targets):
            if any(run.device.name == target.name for run in self.others.known):
                continue  # the job's own runs there say more
            others = shared_with(self.others, target.name)
            seen = errors_on(others, target.name)
            if seen is not None:
                work = self.work
                if others is not self.others:
                    work = work_from_runs(
                        others.known, others.parameters, precision=others.precision
                    )
                # Of the step fitted to the shared runs alone, as the others' are; where nothing is
                # seen it stays what all of the job's runs say.
                apart = _log_ratio(self.work, work, target, others.parameters)
                at = features(work, self.work.micro_batch, others.known)
                found, left[row] = expected_error(at, seen, float(factor[row]) + apart)
                factor[row] = found - apart

    def _by_process(
        self, targets: Sequence[Device], log_sd: Floats, constants: Constants, law: Law
    ) -> tuple[Floats, Floats]:
        """Return the same on GPUs, by published steps and by the steps measured on GPUs."""
        assert self.work is not None
        seen = [i for i, d in enumerate(self.devices) if d.kind == "gpu"]
        devices = [*targets, *(self.devices[i] for i in seen)]
        bare_sd = np.r_[log_sd, [self.device_log_sd[i] for i in seen]]
        process = all_heard(constants.residual) if seen else constants.residual
        prior = expected_errors(self.work, devices, process)
        if law == "operators":
            prior = _widened(prior, self.work, devices, bare_sd, constants)
            told = np.array([self.host_log_sd[i] for i in seen])
            prior = self._with_hosts(prior, devices, told, constants)
            if is_known_by_runs(self.work):
                # Of a step that was fitted to runs errors are wider where none of them was.
                runs = [d.name for d in devices[len(targets) :]]
                elsewhere = np.array([d.name not in runs for d in devices], dtype=float)
                added = np.diag(elsewhere * _OF_FEW_RUNS / max(len(runs), 1))
                prior = replace(prior, covariance=prior.covariance + added)
        else:
            scale = bare_sd / prior.log_sd
            prior = ExpectedErrors(
                mean=np.zeros(len(devices)), covariance=prior.covariance * np.outer(scale, scale)
            )
        errors = np.log([self.measured_s[i] / self.predicted_s[i] for i in seen])
        noise = np.array([self.measured_log_sd[i] for i in seen])
        return conditioned(prior, len(targets), errors, noise)

    def _with_hosts(
        self, prior: ExpectedErrors, devices: Sequence[Device], seen: Floats, constants: Constants
    ) -> ExpectedErrors:
        """Return the errors with what the hosts of the job's runs share with the same cards.

        One run tells of its host as much as its calls are of its step: all of it in a small
        batch, next to nothing in a large one. ``devices``: the targets, then those of the runs,
        whose hosts add ``seen``.
        """
        work, targets = self.work, devices[: len(devices) - len(seen)]
        if work is None or not seen.any():
            return prior
        names = np.array([d.name for d in devices])
        asked = step_time(work, targets, [float(work.micro_batch)], constants.device)
        is_there = np.isin(names[: len(targets)], names[len(targets) :])
        of_host = np.r_[np.where(is_there, asked.host_log_sd[:, 0], 0.0), seen]
        shared = np.outer(of_host, of_host) * (names[:, None] == names)
        return replace(prior, covariance=prior.covariance + shared)

    def with_actual(
        self, device: Device, predicted_s: float, measured_s: float, device_log_sd: float,
        host_log_sd: float = 0.0, workers: int | None = None,
    ) -> Anchors:  # fmt: skip
        """Return the anchors with one more: a real run on ``device``, or on ``workers`` of it."""
        return replace(
            self,
            workers=self.workers if workers is None else (*self.workers, workers),
            predicted_s=(*self.predicted_s, predicted_s),
            measured_s=(*self.measured_s, measured_s),
            measured_log_sd=(*self.measured_log_sd, ACTUAL_LOG_SD),
            device_log_sd=(*self.device_log_sd, device_log_sd),
            host_log_sd=(*self.host_log_sd, host_log_sd),
            devices=(*self.devices, device),
        )


def _widened(
    prior: ExpectedErrors, work: Work, devices: Sequence[Device], log_sd: Floats,
    constants: Constants,
) -> ExpectedErrors:  # fmt: skip
    """Return the process's errors, wider by what it has not seen: kinds, families, distances."""
    known = constants.device
    is_guessed = ~are_measured(Devices.of(devices), work.precision)
    within = known.log_sd**2 + np.where(is_guessed, known.unmeasured_rate_log_sd**2, 0.0)
    beyond = np.sqrt(np.maximum(np.square(log_sd) - within, 0.0))
    names = np.array([d.name for d in devices])
    process = constants.residual
    spread = process.spread if work.call_s is None else process.recorded_spread
    covariance = prior.covariance * spread**2
    covariance = covariance + np.outer(beyond, beyond) * (names[:, None] == names)
    return ExpectedErrors(mean=prior.mean, covariance=covariance)


def _log_ratio(one: Work, other: Work, target: Device, parameters: DeviceParameters) -> float:
    """Return ln of one step over another on a device, in the batch of the first."""
    if one is other:
        return 0.0
    batch = [float(one.micro_batch)]
    seconds = [step_time(work, [target], batch, parameters) for work in (one, other)]
    whole = [float(s.micro_batch_s[0, 0] + s.optimizer_s[0]) for s in seconds]
    return math.log(whole[0] / whole[1])


_DECIMALS: Final = 9  # of logarithms
# Variance that a step fitted to n runs adds on a device that none was on, times n: what is left
# of errors on Lambda's suite (25 GPUs, one left out) with 1, 2, 3 and 6 runs of a job drawn.
_OF_FEW_RUNS: Final = 0.4
# Deviation of ln(step) that a doubling of the devices adds where nothing but runs is known of a
# job, beside that of scaling: what makes the errors on MLPerf's larger systems likeliest, every
# benchmark counting the same (lab/experiments/doublings.py, which the history keeps).
_OF_A_DOUBLING: Final = 0.0755


def host_anchor(job: Job, work: Work, constants: Constants) -> Anchors:
    """Set the job's measured step on the host beside the model's.

    A step on a card that the device sheet does not know anchors nothing, nor does one that only
    waited for data or for other ranks: none of it was computing.
    """
    asked = asked_work(job, work)
    at, bare = job.measured, Anchors(core_speed=host_core_speed(job), work=asked)
    if at is None or (device := host_device(at.host, at.threads, at.device)) is None:
        return bare
    computing_s = at.step_s - job.feed.wait_s - at.exchange_s
    if computing_s <= 0:
        return replace(bare, host=device)
    columns = step_time(work, [device], [work.micro_batch], constants.device)
    predicted = float(columns.micro_batch_s[0, 0] * job.recorded_passes + columns.optimizer_s[0])
    found = bare.with_actual(device, predicted, computing_s, float(columns.log_sd[0]))
    return replace(found, measured_log_sd=(at.log_sd,), host=device)


def asked_work(job: Job, work: Work) -> Work:
    """Return the step as it is asked for, which is what published steps are likened to.

    The batch that happened to be recorded says nothing of an answer in another one. A described
    transformer is likened by its micro-batch; a job known by its runs has the batch asked already.
    """
    is_described = work.transformer is not None and not work.layers
    if is_described or is_known_by_runs(work):
        return work
    return at_batch(work, max(job.global_batch, 1))


def is_step_uncertain(job: Job) -> bool:
    """Whether the clock says too little of the recorded step to answer for its own machine.

    The one rule of recordings: beyond ``MOST_RATIO`` between its ends an interval is no answer.
    """
    if job.measured is None or job.measured.device != "cpu":
        return False
    return ratio(job.measured.log_sd, job.length_log_sd) > MOST_RATIO


def host_core_speed(job: Job) -> float | None:
    """Return the speed of one core of the host, None where it was not measured. [1/s]."""
    benchmark = job.measured.host.benchmark if job.measured else None
    return None if benchmark is None else benchmark.scalar_score


Integers = NDArray[np.int64]
Found = TypeVar("Found")

# What may be chosen where nobody says otherwise. GPipe holds every micro-batch and is never faster
# than 1F1B; stages interleave where a stack does so by default (``StackFacts.schedules``).
SPACE: Final = SearchSpace(schedules=("1f1b",), sureness=RENTED)


# Devices that are calibrated alone, and how often, before the whole fleet is.
_FEW: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A job with steps, over a fleet of machines."""

    job: Job
    work: Work
    fleet: TypeColumns
    anchors: Anchors  # measured steps against the model's
    constants: Constants
    # the catalogue's rows by name: kernels' generation and links to the host
    accelerators: Mapping[str, Accelerator] = field(default_factory=dict)
    space: SearchSpace = SPACE  # what a layout may be
    known_network: bool = False  # leave machines out whose network is not known
    # what the user's measured layouts say; ``constants`` hold what they say of the constants
    own: OwnLayouts | None = None
    # the job's own law of scaling on machines where enough of it was measured
    clusters: Mapping[Key, ScalingFit] = field(default_factory=dict)
    # the job's own runs beside what is answered there; None where there are none
    believed: Believed | None = None
    # what was found of machines before, by what matters of them; filled by the ways
    seen: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: tuple[object, ...], make: Callable[[], Found]) -> Found:
        """Return what was made under a key before, made now where nothing was."""
        if key not in self.seen:
            self.seen[key] = make()
        found: Found = self.seen[key]
        return found

    def status(self, type_index: Integers, count: Integers) -> Integers:
        """Return why a row cannot be estimated in any layout, 0 where it may be."""
        fleet = self.fleet
        status = np.zeros(len(count), dtype=np.int64)
        for reason, holds in (
            ("too_few_vcpus", lacks_vcpus(self.job, fleet, type_index)),
            ("does_not_fit_in_memory", ~host_holds(self.job, self.work, fleet, type_index)),
            ("network_unknown", self.known_network & self.is_network_assumed(type_index, count)),
            ("no_time_model", fleet.device[type_index] < 0),
            ("cpu_baseline_unknown", np.isnan(fleet.cpu_baseline[type_index])),
            ("accelerator_not_supported", ~fleet.is_supported[type_index]),
            (
                "recorded_step_uncertain",
                # Others than the machine of the recording are answered as described jobs are.
                fleet.is_recorded & is_step_uncertain(self.job) & np.ones(len(count), bool),
            ),
        ):  # the last one that holds is the first reason
            status[holds] = CODE[reason]
        if not is_known_by_runs(self.work):
            return status
        # Refused is what runs on accelerators tell nothing of: several, if none was; processors.
        is_lone = fleet.per_node[type_index] * count == 1
        if max(self.anchors.workers, default=1) == 1:
            status[(status == 0) & ~is_lone] = CODE["runs_on_one_machine"]
        seen_cpu = any(d.kind == "cpu" for d in self.anchors.devices)
        if not seen_cpu and self.anchors.devices:
            status[(status == 0) & ~fleet.is_accelerated[type_index]] = CODE["no_time_model"]
        return status

    def no_times(self, way: int, type_index: Integers, count: Integers) -> TimeColumns:
        """Return columns of rows that are not estimated yet; they know why they cannot be."""
        return no_times(
            way, type_index, count, self.status(type_index, count),
            startup_s=self.startup_s(type_index), data_in_s=self.data_in_s(type_index),
            dp=self.fleet.per_node[type_index] * count,
        )  # fmt: skip

    def calibrated(self, device: Integers) -> tuple[Floats, Floats]:
        """Return what to add to ln(step) by the operators' law, and its deviation, by device.

        Many are asked of the whole fleet at once: the process of errors is a product with all its
        rows. The first few, of a changed job on the machines that were chosen, are asked alone.

        ``device``: rows of the fleet's devices.
        """
        key: tuple[object, ...] = ("calibrated",)
        on, place, asked = self.fleet.devices, device, np.unique(device)
        alone = self.once(("calibrated alone",), set[bytes])
        if asked.size <= _FEW and key not in self.seen and len(alone) < _FEW:
            alone.add(asked.tobytes())
            key = *key, asked.tobytes()
            on, place = on.take(asked), np.searchsorted(asked, device)
        factor, log_sd = self.once(key, lambda: self.calibrated_on(on))
        return factor[place], log_sd[place]

    def calibrated_on(self, devices: Sequence[Device]) -> tuple[Floats, Floats]:
        """Return the same on devices that the fleet need not have, each (n_devices,)."""
        columns = step_time(self.work, devices, [1.0], self.constants.device)
        factor, log_sd = self.anchors.calibration(devices, columns.log_sd, self.constants)
        if self.work.least_operators and not self.anchors.devices:
            lower = self._log_least(devices)
            factor, log_sd = factor + lower / 2, np.hypot(log_sd, lower / 2 / REACH_90)
        return factor, log_sd

    def _log_least(self, devices: Sequence[Device]) -> Floats:
        """Return ln(step with the least sizes / with the most), where the network decides them.

        The answer lies in the middle, and 90 % of it reach both. The more samples in a
        micro-batch the further apart the two are: the whole batch on one device counts.
        """
        batches = [self.work.micro_batch, max(self.job.global_batch, self.work.micro_batch)]
        most, least = (
            step_time(work, devices, batches, self.constants.device)
            for work in (self.work, replace(self.work, operators=self.work.least_operators))
        )
        most_s = most.micro_batch_s + most.optimizer_s[:, None]
        least_s = least.micro_batch_s + least.optimizer_s[:, None]
        return np.asarray(np.log(np.minimum(least_s / most_s, 1.0)).min(axis=1))

    def is_network_assumed(self, type_index: Integers, count: Integers) -> NDArray[np.bool_]:
        """Return the rows of several machines whose network nobody states."""
        return np.asarray(self.fleet.is_network_assumed[type_index] & (count > 1))

    def host_speed(self, type_index: Integers) -> Floats:
        """Return how fast a core of these machines starts calls, over the usual one.

        In steps of an eighth, so that few are told apart; 1 where it is not known, and where
        nothing that was recorded is started by it.
        """
        if self.work.call_s is None or self.work.is_host_known:
            return np.ones(len(type_index))
        speed = CALL_S / call_s_on(self.fleet.core_speed[type_index])
        near = np.exp2(np.round(np.log2(speed) * 6) / 6)
        is_known = np.isfinite(near) & self.fleet.is_accelerated[type_index]
        return np.where(is_known, np.clip(near, 0.5, 2.0), 1.0)

    def startup_s(self, type_index: Integers) -> Floats:
        """Return how long these machines take to boot and the program to its first step [s]."""
        speed = relative_speed(self.anchors.core_speed, self.fleet.core_speed[type_index])
        boot_s = self.fleet.boot_s(self.job.transfers.boot_s)
        return np.asarray(boot_s + self.job.startup_s / speed)

    def data_in_s(self, type_index: Integers) -> Floats:
        """Return how long bringing in the data takes [s]."""
        return data_in_s(self.job.transfers, self.fleet.network_bytes_per_s[type_index])

    def loading_s(self, samples: Integers | Floats, type_index: Integers) -> Floats:
        """Return how long a machine takes to load so many samples of one device [s].

        What the loader computes shrinks with faster cores; what it waits for does not.
        """
        job, fleet = self.job, self.fleet
        idle_s = job.feed.idle_s_per_sample / max(job.feed.workers, 1)
        if job.feed.cpu_s_per_sample is None:
            return np.asarray(samples * np.full(len(type_index), idle_s), dtype=float)
        ratio = relative_speed(self.anchors.core_speed, fleet.core_speed[type_index])
        per_sample = job.feed.cpu_s_per_sample / ratio
        processes = fleet.per_node[type_index] * max(job.feed.workers, 1)
        cores_each = np.minimum(1.0, fleet.vcpus[type_index] / processes)
        cores_each = cores_each * max(job.feed.workers, 1)
        return np.asarray(samples * (per_sample / cores_each + idle_s), dtype=float)

    def waiting_s(
        self, step_s: Floats, samples: Integers | Floats, type_index: Integers,
        idle_s: Floats | float = 0.0,
    ) -> Floats:  # fmt: skip
        """Return what loading adds to a step: beside it the excess, inline all of it [s].

        A host that loads inline does so while an accelerator computes what was started already,
        unless the script waits for the accelerator at every step.

        ``idle_s``: what the host has nothing to start in a step.
        """
        load_s = self.loading_s(samples, type_index)
        if self.job.feed.workers == 0:
            waits = self.work.is_synchronised or self.job.feed.is_environment
            goes_on = self.fleet.is_accelerated[type_index] & (not waits)
            return np.maximum(load_s - np.where(goes_on, idle_s, 0.0), 0.0)
        return np.maximum(load_s - step_s, 0.0)


def is_laid_out_by_shape(case: StepCase, type_index: Integers) -> NDArray[np.bool_]:
    """Return the rows on which the job is a transformer of known dimensions on accelerators."""
    if case.work.transformer is None or case.work.layers:
        return np.zeros(len(type_index), dtype=bool)
    return np.asarray(case.fleet.is_accelerated[type_index])


def machine_key(case: StepCase, row: int) -> tuple[object, ...]:
    """Return what two types must have in common to take equally long for every layout."""
    fleet = case.fleet
    columns = (fleet.device, fleet.per_node, fleet.domain_machines, fleet.intra_bytes_per_s,
               fleet.network_bytes_per_s, fleet.is_rdma, fleet.memory_bytes)  # fmt: skip
    return tuple(column[row].item() for column in columns)
