"""From a job and a catalogue to time, memory and interval of every candidate.

``Predictor`` is the one estimate function: the command line, the Python API, the reports and the
exports all show its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, overload

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, InstanceType, OfferColumns, OfferFilter, Pricing
from advisor.domain import Candidate, CompletionWay, Explanation, Predictions, Refused
from advisor.jobs.job import Job
from advisor.jobs.loading import load_job
from advisor.machines.fleet import Fleet
from advisor.planners.layouts.grid import SearchSpace
from advisor.predict.answers import explanation
from advisor.predict.candidates import candidate
from advisor.predict.completion import Completion, on_demand
from advisor.predict.data_costs import SideCosts
from advisor.predict.learned import Learned
from advisor.predict.many import Terms, estimates
from advisor.predict.physics import Physics
from advisor.predict.rental import completed
from advisor.ways.anchors import host_core_speed
from advisor.ways.beside import beside_words
from advisor.ways.columns import STATUSES, TimeColumns
from advisor.ways.constants import Constants
from advisor.ways.why import reasons

__all__ = ["STATUSES", "Learned", "Predictor", "TimeColumns"]


class Predictor(Physics):
    """Estimates training jobs on cloud configurations, anchored on the host's measured step.

    Parameters
    ----------
    catalogue : Catalogue, optional
        The bundled (or the user's updated) one by default.
    learned : Learned or None
        What was learned from runs. By default the user's own model, else the one that ships;
        None for physics alone.
    """

    name: Final = "roofline"
    version: Final = "1"

    def __init__(
        self,
        catalogue: Catalogue | None = None,
        *,
        constants: Constants | None = None,
        learned: Learned | Literal["default"] | None = "default",
    ) -> None:
        super().__init__(catalogue, constants=constants)
        self.learned = Learned.default() if learned == "default" else learned

    def __repr__(self) -> str:
        """Say what the estimates rest on."""
        runs = (
            "" if self.learned is None else f" + {self.learned.about['records']:,} labelled runs"
        )
        return f"<Predictor: {self.name} {self.version}{runs}; {self.catalogue!r}>"

    @classmethod
    def load(
        cls, folder: str | Path | None = None, *, catalogue: Catalogue | None = None
    ) -> Predictor:
        """Return a predictor with a model that ``advisor train`` wrote.

        Raises ModelError if there is no such model, it was changed, or was fitted on other
        features.
        """
        return cls(catalogue, learned="default" if folder is None else Learned.open(Path(folder)))

    def step_columns(
        self,
        job: Job,
        type_index: NDArray[np.int64],
        count: NDArray[np.int64],
        *,
        fleet: Fleet | None = None,
        space: SearchSpace | None = None,
        known_network: bool = False,
    ) -> TimeColumns:
        """Estimate one step of ``job`` on ``count`` machines of the types at ``type_index``.

        The one estimate behind every verb: the best layout of every row, by physics, corrected
        where the learned model covers the candidate.

        Parameters
        ----------
        type_index, count : integer arrays of shape (n,)
            Rows of the fleet's types; machines used together.
        known_network : bool, default False
            Leave machines out whose network is not known.
        """
        columns = self.physics_columns(
            job, type_index, count, fleet=fleet, space=space, known_network=known_network
        )
        return self.corrected(job, columns, fleet=fleet)

    def corrected(
        self, job: Job, columns: TimeColumns, *, fleet: Fleet | None = None
    ) -> TimeColumns:
        """Return columns of the catalogue's machines with what was learned from runs."""
        if self.learned is None or fleet is not None:
            return columns  # what was learned is asked about machines of the catalogue
        return self.learned.corrected(job, self.catalogue, columns)

    @overload
    def predict(  # type: ignore[overload-overlap] # a str is a sequence of str, too
        self, profile: Job | str | Path, configurations: str, *, count: int = ...,
        provider: str | None = ..., region: str | None = ..., pricing: Pricing = ...,
        completion: CompletionWay | None = ..., coverage: float = ...,
    ) -> Candidate: ...  # fmt: skip

    @overload
    def predict(
        self, profile: Job | str | Path, configurations: Sequence[str | tuple[str, int]], *,
        provider: str | None = ..., region: str | None = ..., pricing: Pricing = ...,
        completion: CompletionWay | None = ..., coverage: float = ...,
    ) -> Predictions: ...  # fmt: skip

    def predict(
        self,
        profile: Job | str | Path,
        configurations: str | Sequence[str | tuple[str, int]],
        *,
        count: int = 1,
        provider: str | None = None,
        region: str | None = None,
        pricing: Pricing = "on-demand",
        completion: CompletionWay | None = None,
        coverage: float = 0.9,
    ) -> Candidate | Predictions:
        """Estimate the whole job on machines of named types, each in its cheapest region.

        Raises CatalogueError if the one type is unknown or has no such price; UsageError if the
        job cannot run there: memory, workers, unknown network.

        Parameters
        ----------
        profile : Job, str or Path
            A job, or the name or folder of a recorded run.
        configurations : str, or sequence of str or (str, int)
            ``"g5.xlarge"`` or ``"aws:g5.xlarge"`` for one answer; ``["g5.xlarge",
            "2 x g5.xlarge", ("g5.xlarge", 4)]`` for as many.
        completion : CompletionWay, optional
            What the job runs on until it is done; by default one kind of machines, as ``pricing``
            says. The others start on spot machines: ``pricing="spot"``.
        coverage : float
            Probability that an interval holds the true value: 0.5, 0.8, 0.9 or 0.95.

        Returns
        -------
        Candidate, or Predictions where a sequence is given
            What cannot be answered of a sequence is a row that says why: it raises nothing.
        """
        job = profile if isinstance(profile, Job) else load_job(profile)
        rental = Terms(
            provider=provider, region=region, pricing=pricing, completion=completion,
            coverage=coverage,
        )  # fmt: skip
        if not isinstance(configurations, str):
            return Predictions(tuple(estimates(self, job, configurations, rental)))
        (found,) = estimates(self, job, [(configurations, count)], rental)
        if isinstance(found, Refused):
            raise found.error
        return found

    def predict_interval(
        self,
        profile: Job | str | Path,
        configurations: Sequence[str | tuple[str, int]],
        coverage: float = 0.9,
    ) -> NDArray[np.float64]:
        """Return the bounds of the training times, shape (n, 2), nan where there is none. [h].

        Parameters are those of ``predict``.
        """
        found = self.predict(profile, configurations, coverage=coverage)
        bounds = np.full((len(found), 2), np.nan)
        for one in found.candidates:
            bounds[one.rank - 1] = one.training_time_h.low, one.training_time_h.high
        return bounds

    def explain(
        self, profile: Job | str | Path, configurations: Sequence[str | tuple[str, int]]
    ) -> Explanation:
        """Return what the step waits for, and what each group of features does to the answer.

        Parameters are those of ``predict``.
        """
        job = profile if isinstance(profile, Job) else load_job(profile)
        found = self.predict(job, configurations)
        effects: list[dict[str, float]] = [{} for _ in found.candidates]
        if self.learned is not None and found.candidates:
            effects = self.learned.effects(job, self.catalogue, self._columns_of(job, found))
        return explanation(found, effects)

    def _columns_of(self, job: Job, found: Predictions) -> TimeColumns:
        parts = [candidate.configuration.parts[0] for candidate in found.candidates]
        rows = [
            self.catalogue.instance_type(offer.instance_type, provider=offer.provider).index
            for offer, _ in parts
        ]
        return self.physics_columns(job, np.array(rows), np.array([count for _, count in parts]))

    def cheapest(
        self, row: InstanceType, *, region: str | None = None, pricing: Pricing = "on-demand"
    ) -> tuple[OfferColumns, int | None]:
        """Return a type's offers, and the row of the cheapest; None where there is none."""
        offers = self.catalogue.select(
            OfferFilter(
                providers=(row.provider,),
                types=(row.name,),
                regions=(region,) if region else (),
                pricing=(pricing,),
            )
        )
        places = np.flatnonzero(offers.type_index == row.index)
        if places.size == 0:
            return offers, None
        return offers, int(places[np.argmin(offers.price_usd_per_h[places])])

    def rented(
        self,
        job: Job,
        columns: TimeColumns,
        offers: OfferColumns,
        offer_row: int,
        *,
        pricing: Pricing = "on-demand",
        completion: CompletionWay | None = None,
        coverage: float = 0.9,
        space: SearchSpace | None = None,
        known_network: bool = False,
    ) -> Candidate:
        """Return the whole job on the machines of the only row of the columns, by one offer.

        ``completion`` is as for ``predict``; ``space`` and ``known_network`` are those that the
        columns were asked with, and hold for fewer machines of the type, too.
        """
        way: CompletionWay = completion or ("spot" if pricing == "spot" else "on-demand")
        side = self.side_costs(job, offers)
        done = completed(
            job, columns, self.catalogue, offers, offer_row, side, way, coverage,
            partial(self.step_columns, space=space, known_network=known_network),
        )  # fmt: skip
        return self.candidate(
            job,
            columns,
            done,
            offers,
            side,
            offer_row=offer_row,
            column=0,
            completion_row=0,
            coverage=coverage,
            steady=on_demand(job, columns, coverage),
        )

    def candidate(
        self,
        job: Job,
        columns: TimeColumns,
        completion: Completion,
        offers: OfferColumns,
        side: SideCosts,
        *,
        offer_row: int,
        column: int,
        completion_row: int,
        coverage: float,
        rank: int = 1,
        steady: Completion | None = None,
    ) -> Candidate:
        """Make the object of one row of the columns, rented by one offer.

        ``steady`` are the columns' completions on demand, to set beside a spot offer.
        """
        return candidate(
            job,
            self.catalogue,
            columns,
            completion,
            offers,
            offer_row=offer_row,
            column=column,
            completion_row=completion_row,
            side=side,
            steady=steady,
            host_core_speed=host_core_speed(job),
            coverage=coverage,
            why=self._why(job, columns, column),
            rank=rank,
            device=self.device_of(int(columns.type_index[column]), job),
        )

    def _why(self, job: Job, columns: TimeColumns, column: int) -> tuple[str, ...]:
        """Say why the layout of one row was chosen."""
        if job.work is None:
            return ()
        if said := beside_words(columns, column):
            return said
        return reasons(
            self.case(job),
            int(columns.type_index[column]),
            int(columns.count[column]),
            columns.layout(column),
            float(columns.step_s[column]),
        )
