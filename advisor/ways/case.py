"""What a way of training needs to know: the job, the machines as columns, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Accelerator
from advisor.jobs.data_in import data_in_s
from advisor.jobs.job import Job
from advisor.machines.fleet import Fleet
from advisor.planners.core.nouns import Work
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.links.scaling_fit import ScalingFit
from advisor.planners.step.from_runs import is_known_by_runs
from advisor.planners.step.input_pipeline import relative_speed
from advisor.ways.anchors import Anchors
from advisor.ways.columns import CODE
from advisor.ways.constants import Constants
from advisor.ways.measured_cluster import Key
from advisor.ways.own_layouts import OwnLayouts

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# What may be chosen where nobody says otherwise. GPipe holds every micro-batch and is never faster
# than 1F1B; tensor parallel ranks that a network lies between have never paid.
SPACE: Final = SearchSpace(schedules=("1f1b", "interleaved"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A job with steps, over a fleet of machines.

    Attributes
    ----------
    job : Job
    work : Work
        The job's.
    fleet : Fleet
    anchors : Anchors
        Measured steps against the model's.
    constants : Constants
    accelerators : mapping of str to Accelerator
        The catalogue's rows by name: kernels' generation and links to the host.
    space : SearchSpace
        What a layout may be.
    known_network : bool
        Leave machines out whose network is not known.
    own : OwnLayouts or None
        What the user's measured layouts say; ``constants`` hold what they say of the constants.
    clusters : mapping of Key to ScalingFit
        The job's own law of scaling on machines where enough of it was measured.
    seen : dict
        What was found of machines before, by what matters of them; filled by the ways.
    """

    job: Job
    work: Work
    fleet: Fleet
    anchors: Anchors
    constants: Constants
    accelerators: Mapping[str, Accelerator] = field(default_factory=dict)
    space: SearchSpace = SPACE
    known_network: bool = False
    own: OwnLayouts | None = None
    clusters: Mapping[Key, ScalingFit] = field(default_factory=dict)
    seen: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def status(self, type_index: Integers, count: Integers) -> Integers:
        """Return why a row cannot be estimated in any layout, 0 where it may be."""
        fleet = self.fleet
        status = np.zeros(len(count), dtype=np.int64)
        for reason, holds in (
            ("network_unknown", self.known_network & self.is_network_assumed(type_index, count)),
            ("no_time_model", fleet.device[type_index] < 0),
            ("accelerator_not_supported", ~fleet.is_supported[type_index]),
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
