"""One group of equal machines that are given: its answers as choices of a plan, or why none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from advisor.domain import Estimate
from advisor.machines.fleet import Fleet
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Layout
from advisor.planners.core.units import GIB
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.layouts.search import check, nothing_fits
from advisor.predict import TimeColumns
from advisor.ranking.plan_question import PlanQuestion
from advisor.ranking.whole_job import whole_job
from advisor.ways.answer import Choice, way_on
from advisor.ways.case import is_laid_out_by_shape
from advisor.ways.columns import STATUSES
from advisor.ways.commands import commands
from advisor.ways.model_parallel import on_machine, search, space_on
from advisor.ways.on_groups import notes_of
from advisor.ways.places import Place
from advisor.ways.units import UnitModel
from advisor.ways.words import assumed_network

DEGREES: Final = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
# Reasons that the search over a model's units has more to say about.
_OF_LAYOUTS: Final = ("does_not_fit_in_memory", "fewer_samples_than_workers", "excluded_by_layout")


class OnGroup:
    """A question about the machines of one group, as the predictor is asked it."""

    def __init__(self, question: PlanQuestion, place: Place) -> None:
        self.question, self.group = question, place.group
        self.case, self.row = place.case, place.row
        is_catalogue = place.case.fleet is question.predictor.fleet
        self.fleet: Fleet | None = None if is_catalogue else place.case.fleet

    @property
    def is_by_shape(self) -> bool:
        """Whether the job is laid out by its dimensions here."""
        return bool(is_laid_out_by_shape(self.case, np.array([self.row])).all())

    def columns(self, counts: Sequence[int], space: SearchSpace) -> TimeColumns:
        """Return the job on these numbers of machines, in the best of the layouts admitted."""
        return self.question.predictor.step_columns(
            self.question.job,
            np.full(len(counts), self.row),
            np.array(counts),
            fleet=self.fleet,
            space=replace(space, swaps=False),  # it stands beside the others: ``given``
        )

    def refusal(self, columns: TimeColumns, count: int) -> PlanningError:
        """Return why nothing runs on so many machines: the nearest miss, or what contradicts.

        Parameters
        ----------
        columns : TimeColumns
            Whose last row is of ``count`` machines, and has no estimate.
        """
        if not self.is_by_shape:
            return self._refusal_of_units(STATUSES[int(columns.status[-1])], count)
        on = on_machine(self.case, self.row)
        devices, batch = count * on.per_node, self.case.job.global_batch
        space = space_on(self.case.space, on.problem)
        try:
            check(on.problem, devices, batch, space)
        except PlanningError as error:
            return error
        return nothing_fits(on.problem, search(self.case, on, count), devices, batch, space)

    def _refusal_of_units(self, status: str, count: int) -> PlanningError:
        found = None
        if status in _OF_LAYOUTS:
            found = UnitModel(self.case).refusal(self.row, count)
        return found or PlanningError(
            f"{self.question.job.name} cannot be trained on {count} x {self.group.label}: "
            f"{status.replace('_', ' ')}",
            hint="use other machines, more of them, or another batch",
            exit_code=3,
        )

    def considered(self, count: int) -> tuple[int, int]:
        """Return how many layouts were looked at on so many machines, and how many fit."""
        if not self.is_by_shape:
            return 0, 0
        found = search(self.case, on_machine(self.case, self.row), count)
        return found.considered, found.fitting

    def choice(self, columns: TimeColumns, row: int, space: SearchSpace) -> Choice:
        """Return one row as a choice.

        Parameters
        ----------
        space : SearchSpace
            In which the row's layout was found.
        """
        question, group = self.question, self.group
        layout, nodes = columns.layout(row), int(columns.count[row])
        step_s = float(columns.step_s[row])
        shares = columns.shares.items()
        parts = {name: float(share[row]) * step_s for name, share in shares if share[row] > 0}
        price = None if group.price_usd_per_h is None else group.price_usd_per_h * nodes
        started, why_not = commands(
            self.case, self.row, layout, group=group.label, nodes=nodes, space=space,
            script=question.command,
        )  # fmt: skip
        notes = [*why_not, *(notes_of([group]) if question.is_by_shape else ())]
        if columns.is_network_assumed[row]:
            notes.append(assumed_network(float(columns.shares["network"][row])))
        return way_on(
            question.cluster,
            {group.label: nodes},
            name=family(layout),
            step_time_s=Estimate.lognormal(step_s, float(columns.log_sd[row]), question.coverage),
            global_batch=question.job.global_batch,
            devices=layout.devices,
            memory_bytes={group.label: float(columns.memory_bytes[row])},
            layouts={group.label: layout},
            bottleneck=max(parts, key=lambda name: parts[name]),
            details={
                "parts_s": parts,
                "host_memory_gib": float(columns.host_bytes[row]) / GIB,
            },
            commands=started,
            notes=tuple(notes),
            **whole_job(question, columns, row, price, {group.label: nodes}),
        )


def family(layout: Layout) -> str:
    """Return what a layout is called by its degrees.

    >>> family(Layout(dp=8)), family(Layout(tp=2, pp=4))
    ('data parallel', 'tensor and pipeline parallel')
    """
    said = [word for name, word in DEGREES.items() if getattr(layout, name) > 1]
    return f"{' and '.join(said)} parallel" if said else "data parallel"
