"""What ``advisor plan`` is asked: a job, the machines that are given, and what may be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from advisor.domain import QUANTILES
from advisor.errors import RunError, UsageError
from advisor.jobs.job import Job
from advisor.machines.cluster import NamedCluster
from advisor.planners.layouts.grid import SearchSpace
from advisor.predict import Predictor
from advisor.ways.answer import Objective
from advisor.ways.case import SPACE, StepCase


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """What ``advisor plan`` is asked.

    Attributes
    ----------
    objective : {"time", "cost"}
    coverage : float
        Probability that an interval holds the true value.
    swap : bool or None
        Compare layer swapping; None: on consumer cards.
    average_every : int or None
        Steps between two averages of the weights of swapping peers; None: every eighth step.
    """

    job: Job
    cluster: NamedCluster
    objective: Objective = "time"
    space: SearchSpace = SPACE
    coverage: float = 0.9
    swap: bool | None = None
    average_every: int | None = None
    command: tuple[str, ...] = ()
    predictor: Predictor = field(default_factory=Predictor)

    def __post_init__(self) -> None:
        if self.job.work is None:
            raise RunError(
                f"run {self.job.name} has no training steps to lay out",
                hint="plan a run that trains with PyTorch, or rank machines: advisor recommend",
            )
        if not 1 <= self.job.global_batch <= 10**7:
            raise UsageError(
                f"a global batch of {self.job.global_batch} is out of range",
                hint="give --batch with the samples of a step over all workers",
            )
        if self.coverage not in QUANTILES:
            known = ", ".join(str(one) for one in QUANTILES)
            raise UsageError(
                f"--coverage {self.coverage} is not available", hint=f"one of: {known}"
            )
        unpriced = [g.label for g in self.cluster.groups if g.price_usd_per_h is None]
        if self.objective == "cost" and self.cluster.is_mixed and unpriced:
            raise UsageError(
                f"machines without a price have no cheapest layout: {', '.join(unpriced)}",
                hint="name instance types that one region sells, or ask for --objective time",
            )

    @cached_property
    def case(self) -> StepCase:
        """The job over the catalogue's machines, as the ways of training see it."""
        return self.predictor.case(self.job, space=self.space)

    @property
    def is_by_shape(self) -> bool:
        """Whether the job is a transformer of known dimensions."""
        work = self.case.work
        return work.transformer is not None and not work.layers
