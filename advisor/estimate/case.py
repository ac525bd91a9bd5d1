"""Measured steps against what the model says of them: the host's own, and real runs elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import fitted
from advisor.catalogue import Accelerator
from advisor.collectors.derive import MOST_RATIO, ratio
from advisor.estimate.knowledge.layout_model import LayoutModel, load
from advisor.estimate.time_columns import CODE
from advisor.jobs import Job, data_in_s
from advisor.machines import (
    Fleet,
    calibration_parameters,
    device_parameters,
    host_device,
    host_fits,
    residual_parameters,
)
from advisor.planners.core import Device, LayoutParameters, Layouts, Work
from advisor.planners.layouts import (
    NAMES,
    LayoutProblem,
    LayoutRuns,
    OwnRunsFit,
    SearchSpace,
    fit_own_runs,
    from_logarithms,
    logarithms,
    sensitivity,
)
from advisor.planners.links import (
    NOISE,
    Array,
    MeasuredPlacements,
    Placements,
    ScalingFit,
    ScalingParameters,
    fit_cluster,
)
from advisor.planners.memory import MemoryParameters
from advisor.planners.step import (
    CalibrationParameters,
    DeviceParameters,
    Devices,
    ExpectedErrors,
    OtherJobs,
    ResidualParameters,
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
    least_growth,
    own_hosts,
    relative_speed,
    shared_with,
    step_time,
    work_from_runs,
)
from advisor.planners.systems import RankSpread, per_doubling
from advisor.quantities import REACH_90

# Fitted constants: from the files of ``trained_models`` to the planners' frozen records.


DIGITS = 5  # significant: fits converge further, readings are less certain


def scaling(folder: Path | None = None) -> ScalingParameters:
    """Read the constants of data-parallel scaling; ``folder`` replaces the packaged one."""
    file = (folder or data.model("scaling")) / "parameters.json"
    return fitted(ScalingParameters, file, part="parameters", train="scaling")


def memory(folder: Path | None = None) -> MemoryParameters:
    """Read the constants of the memory model; ``folder`` replaces the packaged one."""
    file = (folder or data.root("trained_models") / "memory") / "parameters.json"
    return fitted(MemoryParameters, file, part="parameters", train="memory")


# The fitted constants that an estimate needs, read once from ``trained_models/``.


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

# A user's own measurement of a step: its scatter from run to run on one machine, as for repeated
# cloud measurements with the same software (reference: H100 nodes 0.7 %, same round 3 %).
_ACTUAL_LOG_SD = 0.03


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
    devices: tuple[Device, ...] = ()  # where each was measured
    host: Device | None = None  # what the recorded job computed on
    # the job's: what published steps of jobs like it say of GPUs is heard. None for the bare
    # model.
    work: Work | None = None
    # devices that shared each step, of a job that is known by its runs alone
    workers: tuple[int, ...] = ()
    others: OtherJobs | None = None  # other jobs' runs, where the job is known by its runs alone

    @property
    def are_of_several(self) -> bool:
        """Whether a job that is known by its runs alone ran on several devices at once."""
        return max(self.workers, default=1) > 1

    def unheard(self, targets: Sequence[Device], constants: Constants) -> Floats:
        """Return the share of what nobody knows of a target's host that the job's runs leave open.

        One without runs on GPUs; where the job ran on the very card, what two machines differ by.
        """
        # What own runs of other jobs told of a host is in the process (``_host_log_sd``).
        open_ = np.where(own_hosts(targets, constants.residual), 0.0, 1.0)
        seen = [d for d in self.devices if d.kind != "cpu"]
        if not seen:
            return open_
        told = correlations(targets, seen, constants.calibration).max(axis=1)
        return np.asarray(open_ * np.sqrt(np.maximum(1.0 - np.square(told), 0.0)))

    def size_log_sd(self, workers: NDArray[np.int64]) -> Floats:
        """Return what other numbers of devices than those of the runs add to ln(step)'s error.

        Zero unless the job is known by its runs alone.
        """
        if not self.workers:
            return np.zeros(len(workers))
        doublings = np.abs(np.log2(np.asarray(workers)[:, None] / np.array(self.workers)))
        return np.asarray(_OF_A_DOUBLING * doublings.min(axis=1))

    def calibration(
        self,
        targets: Sequence[Device],
        log_sd: Floats,
        constants: Constants,
        law: Law = "operators",
    ) -> tuple[Floats, Floats]:
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
        hosts = self._host_log_sd(devices, constants)
        prior = expected_errors(self.work, devices, constants.residual, hosts)
        if law == "operators":
            prior = replace(prior, mean=prior.mean + self._growth(devices, constants))
            prior = _widened(prior, self.work, devices, bare_sd, constants)
            if is_known_by_runs(self.work):
                prior = _fitted_to(prior, len(targets), [d.name for d in devices])
        else:
            scale = bare_sd / prior.log_sd
            prior = ExpectedErrors(
                mean=np.zeros(len(devices)), covariance=prior.covariance * np.outer(scale, scale)
            )
        errors = np.log([self.measured_s[i] / self.predicted_s[i] for i in seen])
        noise = np.array([self.measured_log_sd[i] for i in seen])
        return conditioned(prior, len(targets), errors, noise)

    def _host_log_sd(self, devices: Sequence[Device], constants: Constants) -> Floats | None:
        """Return what not knowing hosts adds to ln(step); None where own runs told of none."""
        work = self.work
        if work is None or not own_hosts(devices, constants.residual).any():
            return None
        batch = [float(work.micro_batch)]
        return step_time(work, devices, batch, constants.device).host_log_sd[:, 0]

    def _growth(self, devices: Sequence[Device], constants: Constants) -> Floats:
        """Return what errors lack for a larger batch to take no less than a smaller one."""
        work = self.work
        assert work is not None

        def log_s(batches: Floats) -> Floats:
            found = step_time(work, devices, batches, constants.device)
            return np.asarray(np.log(found.micro_batch_s + found.optimizer_s[:, None]))

        return least_growth(work, devices, log_s, constants.residual)

    def with_actual(
        self, device: Device, predicted_s: float, measured_s: float, device_log_sd: float,
        workers: int | None = None,
    ) -> Anchors:  # fmt: skip
        """Return the anchors with one more: a real run on ``device``, or on ``workers`` of it."""
        return replace(
            self,
            workers=self.workers if workers is None else (*self.workers, workers),
            predicted_s=(*self.predicted_s, predicted_s),
            measured_s=(*self.measured_s, measured_s),
            measured_log_sd=(*self.measured_log_sd, _ACTUAL_LOG_SD),
            device_log_sd=(*self.device_log_sd, device_log_sd),
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
    covariance = prior.covariance * constants.residual.spread**2
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
# benchmark counting the same (``python -m advisor.lab.experiments.doublings``).
_OF_A_DOUBLING: Final = 0.0755


def _fitted_to(prior: ExpectedErrors, targets: int, names: Sequence[str]) -> ExpectedErrors:
    """Return errors of a step that was fitted to runs, wider where none of them was."""
    runs = names[targets:]
    is_elsewhere = np.array([name not in runs for name in names], dtype=float)
    added = np.diag(is_elsewhere * _OF_FEW_RUNS / max(len(runs), 1))
    return ExpectedErrors(mean=prior.mean, covariance=prior.covariance + added)


def host_anchor(job: Job, work: Work, constants: Constants) -> Anchors:
    """Set the job's measured step on the host beside the model's.

    A step on a card that the device sheet does not know anchors nothing, nor does one that only
    waited for data or for other ranks: none of it was computing.
    """
    asked = asked_work(job, work)
    if job.measured is None:
        return Anchors(core_speed=None, work=asked)
    at = job.measured
    device = host_device(at.host, at.threads, at.device)
    if device is None:
        return Anchors(core_speed=host_core_speed(job), work=asked)
    columns = step_time(work, [device], [work.micro_batch], constants.device)
    computing_s = job.measured.step_s - job.feed.wait_s - job.measured.exchange_s
    if computing_s <= 0:
        return Anchors(core_speed=host_core_speed(job), host=device, work=asked)
    return Anchors(
        core_speed=host_core_speed(job),
        predicted_s=(
            float(columns.micro_batch_s[0, 0] * job.recorded_passes + columns.optimizer_s[0]),
        ),
        measured_s=(computing_s,),
        measured_log_sd=(job.measured.log_sd,),
        device_log_sd=(float(columns.log_sd[0]),),
        devices=(device,),
        host=device,
        work=asked,
    )


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


# A job whose steps were measured on several numbers of devices: its own law of scaling there.
#
# Where nothing was measured, links as sold and published constants time the exchange of gradients
# (``ways.data_parallel``). Three runs of the job on at least two numbers of devices say more: the
# law of ``planners.links.scaling`` is fitted to them, and takes the place of the nominal links
# on machines with the same device and network, however many. What the device model says of one
# device stands in as runs of its own error, so that other batches than the measured ones are
# known.


LEAST_RUNS: Final = 3
LEAST_SIZES: Final = 2
# Batches of one device at which the device model stands in, between the least and the most
# measured ones and twice as far.
_BATCHES: Final = 5


Key = tuple[str, float, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """One measured step of the job."""

    key: Key  # of its machines: ``key_of``
    device: Device
    # nodes, per_node: machines, and the devices used of each
    nodes: int
    per_node: int
    batch: float  # samples of a step on one device
    step_s: float  # [s]

    @property
    def workers(self) -> int:
        """Devices in all."""
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The job's own runs beside what is answered in their places, one entry a run.

    Whatever a law cannot follow of them is left in ``errors``, and stands between answers and runs
    unless it is carried back (``estimate.best``).
    """

    runs: tuple[PlacedRun, ...]
    errors: tuple[float, ...]  # ln(measured / answered)

    def at(self, asked: PlacedRun) -> tuple[float, float, float]:
        """Return what to add to ln(step) in a place, and two variances there.

        The first is the share of what the runs leave open, the second what they themselves scatter
        by and how far the law misses them. Kriging of the errors (Rasmussen and Williams, eqs.
        2.25 and 2.26), alike over like batches and numbers of the same device.
        """
        seen = np.array([_likeness(asked, run) for run in self.runs])
        if not (seen > _FAR).any():
            return 0.0, 1.0, 0.0
        near = np.flatnonzero(seen > _FAR)
        runs, errors = [self.runs[i] for i in near], np.array(self.errors)[near]
        whole = np.array([[_likeness(a, b) for b in runs] for a in runs])
        noise = (_ACTUAL_LOG_SD / _MISFIT_LOG_SD) ** 2
        solved = np.linalg.solve(whole + noise * np.eye(len(runs)), np.c_[errors, seen[near]])
        told = float(seen[near] @ solved[:, 1])
        missed = float(np.mean(np.square(errors)))
        left = max(1.0 - told, 0.0)
        return float(seen[near] @ solved[:, 0]), left, left * missed + _ACTUAL_LOG_SD**2


# By which a law may miss a run [ln], and over which batches [ln] and numbers of devices
# [doublings] it misses alike: round numbers. Below ``_FAR`` of a likeness a run says nothing.
_MISFIT_LOG_SD: Final = 0.3
_BATCH_LENGTH: Final = 0.5
_WORKERS_LENGTH: Final = 0.7
_FAR: Final = 0.01


def _likeness(a: PlacedRun, b: PlacedRun) -> float:
    """Return how alike a law errs in two places: 0 on other devices, or over another network."""
    is_same = a.key[0] == b.key[0] and (a.nodes == b.nodes == 1 or a.key == b.key)
    if not is_same:
        return 0.0
    batches = math.log(a.batch / b.batch) / _BATCH_LENGTH
    workers = math.log2(a.workers / b.workers) / _WORKERS_LENGTH
    return math.exp(-0.5 * (batches**2 + workers**2))


def key_of(fleet: Fleet, row: int) -> Key:
    """Return what machines have in common on which a job scales alike: device and network."""
    name = fleet.devices[fleet.device[row]].name if fleet.device[row] >= 0 else ""
    return name, float(fleet.network_bytes_per_s[row]), bool(fleet.is_rdma[row])


def measured_clusters(
    runs: Sequence[PlacedRun], work: Work, parameters: DeviceParameters
) -> dict[Key, ScalingFit]:
    """Return the job's law on each kind of machines with runs enough."""
    return dict(_fits(runs, work, parameters))


def _fits(
    runs: Sequence[PlacedRun], work: Work, parameters: DeviceParameters
) -> Iterator[tuple[Key, ScalingFit]]:
    for key in dict.fromkeys(run.key for run in runs):
        own = [run for run in runs if run.key == key]
        if len(own) >= LEAST_RUNS and len({run.workers for run in own}) >= LEAST_SIZES:
            yield key, _fit(own, work, parameters)


def _fit(own: Sequence[PlacedRun], work: Work, parameters: DeviceParameters) -> ScalingFit:
    batch = np.array([run.batch for run in own])
    device = own[0].device
    asked = np.geomspace(batch.min() / 2, batch.max() * 2, _BATCHES)
    columns = step_time(work, [device], asked, parameters)
    bare_s = columns.micro_batch_s[0] + columns.optimizer_s[0]
    known = MeasuredPlacements(
        placements=placements(
            np.array([*(run.nodes for run in own), *np.ones(_BATCHES)]),
            np.array([*(run.per_node for run in own), *np.ones(_BATCHES)]),
            np.concatenate([batch, asked]),
        ),
        step_s=np.concatenate([[run.step_s for run in own], bare_s]),
        log_sd=np.concatenate([np.full(len(own), NOISE), np.full(_BATCHES, columns.log_sd[0])]),
    )
    # Of a job that is known by its runs alone nobody knows the gradients.
    gradients = work.gradient_bytes if work.gradient_bytes > 0 else None
    return fit_cluster(known, [gradients])


def placements(nodes: Array, per_node: Array, batch: Array) -> Placements:
    """Return runs of the job as the law takes them, all machines alike."""
    nodes, per_node = np.asarray(nodes, float), np.asarray(per_node, float)
    return Placements(
        application=np.zeros(nodes.size, dtype=int),
        nodes=nodes,
        per_node=per_node,
        workers=nodes * per_node,
        batch=np.asarray(batch, float),
    )


def fitted_rows(
    clusters: Mapping[Key, ScalingFit], fleet: Fleet, type_index: np.ndarray
) -> list[tuple[ScalingFit, np.ndarray]]:
    """Return each law with the rows that it times."""
    if not clusters:
        return []
    used, place = np.unique(type_index, return_inverse=True)
    keys = [key_of(fleet, int(row)) for row in used]
    found = []
    for key, fit in clusters.items():
        types = [i for i, one in enumerate(keys) if one == key]
        rows = np.flatnonzero(np.isin(place, types))
        if rows.size:
            found.append((fit, rows))
    return found


# What the user's own measured steps of transformers say of the layout model's constants.
#
# Every run is asked of the same layout problem as the candidates; how far each answer was off
# moves the constants and the devices' times as far as the evidence goes
# (``planners.layouts.own_runs``).


# What is known of links between machines is known of a few sites', most with RDMA: fits without
# one table each agree on constants that no table moves from their priors, and say nothing of a
# user's network. So much it is off at least: the prior's width of the efficiency of networks
# (``lab.fit.layouts.PRIOR_SD``).
_NETWORK_LOG_SD: Final = 0.15
_OF_NETWORKS: Final = (
    "dp_network_efficiency", "dp_latency_s", "dp_overlap", "pp_efficiency", "pp_latency_s",
    "pp_exposed",
)  # fmt: skip
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout:
    """One measured step as the layout model sees it."""

    # the model on the machines of the run, with the constants that are to be calibrated
    problem: LayoutProblem
    layout: Layouts
    device: Device
    step_s: float  # as measured [s]


@dataclass(frozen=True, kw_only=True)
class OwnLayouts:
    """The layout model after a user's own runs."""

    # parameters, before: the constants after the runs and before
    parameters: LayoutParameters
    before: LayoutParameters
    runs: int  # that they were calibrated on
    fit: OwnRunsFit
    devices: tuple[Device, ...]
    calibration: CalibrationParameters

    def log_device(self, device: Device) -> float:
        """Return what to add to the logarithm of a device's times."""
        return self.fit.log_device(self._correlations(device))

    def log_sd(
        self, problem: LayoutProblem, layout: Layouts, device: Device, published_log_sd: float
    ) -> float:
        """Return the deviation of ln(step) of one layout.

        Runs on other devices say less of this one: as much as errors on both are correlated, the
        rest is known as well as without them.

        ``problem``: with the calibrated constants; ``published_log_sd``: deviation without the
        runs.
        """
        known = self._correlations(device)
        _, slopes, device_slope = sensitivity(problem, layout)
        own = self.fit.log_sd(slopes, device_slope, known)
        told = float(np.max(known)) ** 2
        return math.sqrt(told * own**2 + (1 - told) * published_log_sd**2)

    def _correlations(self, device: Device) -> Floats:
        if device.name not in self._known:
            self._known[device.name] = _between([device], self.devices, self.calibration)[0]
        return self._known[device.name]

    @cached_property
    def _known(self) -> dict[str, Floats]:
        """Correlations that were looked up before, by the device's name."""
        return {}


def own_layouts(
    runs: Sequence[MeasuredLayout], spread: Floats, calibration: CalibrationParameters
) -> OwnLayouts:
    """Calibrate the constants of the layout model on a user's own runs.

    ``runs``: at least one; all with the same constants; ``spread``: (p,); of the fitted constants,
    as deviations of their logarithms (``layout_model.LayoutModel.log_spread``); ``calibration``:
    how errors on one device and another are correlated.
    """
    before = runs[0].problem.parameters
    least = np.where(np.isin(NAMES, _OF_NETWORKS), _NETWORK_LOG_SD, 0.0)
    devices = tuple(run.device for run in runs)
    correlated = _between(devices, devices, calibration)
    constants, of_devices = np.zeros(len(NAMES)), np.zeros(len(runs))
    for _ in range(_ROUNDS):  # steps are no straight lines of what moves them far
        fit = fit_own_runs(
            LayoutRuns(
                correlations=correlated,
                spread=np.maximum(spread, least),
                **_around(runs, constants, of_devices),
            )
        )
        constants = fit.log_constants()
        of_devices = np.array([fit.log_device(row) for row in correlated])
    return OwnLayouts(
        parameters=from_logarithms(logarithms(before) + constants),
        before=before,
        runs=len(runs),
        fit=fit,
        devices=devices,
        calibration=calibration,
    )


def _around(
    runs: Sequence[MeasuredLayout], constants: Floats, of_devices: Floats
) -> dict[str, Floats]:
    """Return errors and slopes of the runs where the last round left the constants.

    The errors are those of the first constants, if steps were straight lines of these slopes.
    """
    moved = from_logarithms(logarithms(runs[0].problem.parameters) + constants)
    seen = [
        sensitivity(
            replace(
                run.problem,
                parameters=moved,
                device_factor=run.problem.device_factor * math.exp(of_device),
            ),
            run.layout,
        )
        for run, of_device in zip(runs, of_devices, strict=True)
    ]
    left = np.log([run.step_s / step_s for run, (step_s, _, _) in zip(runs, seen, strict=True)])
    slopes = np.array([slopes for _, slopes, _ in seen])
    device_slopes = np.array([slope for _, _, slope in seen])
    return {
        "log_errors": left + slopes @ constants + device_slopes * of_devices,
        "slopes": slopes,
        "device_slopes": device_slopes,
    }


def _between(
    rows: Sequence[Device], columns: Sequence[Device], calibration: CalibrationParameters
) -> Floats:
    """Return correlations between devices; a user's machines of one name have one error."""
    same = np.array([[a.name == b.name for b in columns] for a in rows])
    return np.where(same, 1.0, correlations(rows, columns, calibration))


# What a way of training needs to know: the job, the machines as columns, what was measured.


Integers = NDArray[np.int64]

# What may be chosen where nobody says otherwise. GPipe holds every micro-batch and is never faster
# than 1F1B; tensor parallel ranks that a network lies between have never paid.
SPACE: Final = SearchSpace(schedules=("1f1b", "interleaved"))


# Devices that are calibrated alone, in place of with the whole fleet.
_FEW: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A job with steps, over a fleet of machines."""

    job: Job
    work: Work
    fleet: Fleet
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

    def status(self, type_index: Integers, count: Integers) -> Integers:
        """Return why a row cannot be estimated in any layout, 0 where it may be."""
        fleet = self.fleet
        status = np.zeros(len(count), dtype=np.int64)
        for reason, holds in (
            ("does_not_fit_in_memory", ~host_fits(self.job, self.work, fleet, type_index)),
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
        if is_known_by_runs(self.work):
            self._refuse_unlike_runs(status, type_index, count)
        return status

    def _refuse_unlike_runs(self, status: Integers, type_index: Integers, count: Integers) -> None:
        """Refuse what runs on accelerators tell nothing of: several, if none was; processors."""
        is_lone = self.fleet.per_node[type_index] * count == 1
        if not self.anchors.are_of_several:
            status[(status == 0) & ~is_lone] = CODE["runs_on_one_machine"]
        seen_cpu = any(d.kind == "cpu" for d in self.anchors.devices)
        if not seen_cpu and self.anchors.devices:
            status[(status == 0) & ~self.fleet.is_accelerated[type_index]] = CODE["no_time_model"]

    def calibrated(self, device: Integers) -> tuple[Floats, Floats]:
        """Return what to add to ln(step) by the operators' law, and its deviation, by device.

        Many are asked of the whole fleet at once: the process of errors is a product with all its
        rows. One or two, of a changed job on the machines that were chosen, are asked alone.

        ``device``: rows of the fleet's devices.
        """
        key: tuple[object, ...] = ("calibrated",)
        on, place, asked = self.fleet.devices, device, np.unique(device)
        if asked.size <= _FEW and key not in self.seen:
            key = *key, asked.tobytes()
            on, place = on.take(asked), np.searchsorted(asked, device)
        if key not in self.seen:
            self.seen[key] = self.calibrated_on(on)
        factor, log_sd = self.seen[key]
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
        self, step_s: Floats, samples: Integers | Floats, type_index: Integers
    ) -> Floats:
        """Return what loading adds to a step: all of it inline, beside it the excess [s]."""
        load_s = self.loading_s(samples, type_index)
        if self.job.feed.workers == 0:
            return load_s
        return np.maximum(load_s - step_s, 0.0)


def is_laid_out_by_shape(case: StepCase, type_index: Integers) -> NDArray[np.bool_]:
    """Return the rows on which the job is a transformer of known dimensions on accelerators."""
    if case.work.transformer is None or case.work.layers:
        return np.zeros(len(type_index), dtype=bool)
    return np.asarray(case.fleet.is_accelerated[type_index])
