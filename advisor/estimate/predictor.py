"""From a job and a catalogue to time, memory and interval of every candidate.

``Predictor`` is the one estimate function: the command line, the Python API, the reports and the
exports all show its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, overload

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Candidate, CompletionWay, Explanation, Predictions, Refused
from advisor.catalogue import Catalogue, OfferFilter, Offers, Pricing, TableRow, TypeColumns
from advisor.errors import UsageError
from advisor.estimate.answer import candidate, explanation, on_demand_price, reasons
from advisor.estimate.best import best_columns
from advisor.estimate.case import SPACE, Anchors, Constants, StepCase, constants, host_anchor
from advisor.estimate.completion import (
    Completion,
    SideCosts,
    SidePrices,
    on_demand,
    on_spot,
    side_prices,
)
from advisor.estimate.knowledge.known import OwnRuns, measured_runs, place_of
from advisor.estimate.knowledge.layout_model import usual_stack
from advisor.estimate.knowledge.learned import Learned, own_model
from advisor.estimate.time_columns import TimeColumns
from advisor.estimate.ways.beside import beside_words
from advisor.estimate.ways.data_parallel import as_recorded, is_answer
from advisor.estimate.ways.model_parallel import check_stack
from advisor.estimate.ways.programs import program_columns
from advisor.estimate.ways.recorded_units import check_space
from advisor.jobs import NO_LENGTH, Job, as_commonly_run, load_job
from advisor.machines import catalogue_fleet, limited_fleet, slowed_by_baseline
from advisor.planners.core import HOUR_S, STACKS, Device, Work, transformer_parameters
from advisor.planners.layouts import SearchSpace
from advisor.planners.step import Devices, is_known_by_runs, step_time, steps_s, unmeasured

# Cases kept: of a question and of what would change its answer, with and without a layout.
_CASES_KEPT: Final = 4


class Predictor:
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
        self, catalogue: Catalogue | None = None, *, constants: Constants | None = None,
        learned: Learned | Literal["default"] | None = "default",
    ) -> None:  # fmt: skip
        self.catalogue = catalogue if catalogue is not None else Catalogue.load()
        self._constants = constants
        self._limited: dict[tuple[float | None, float | None, bool], TypeColumns] = {}
        self.own_runs = OwnRuns(self)
        # what was last asked of the catalogue's machines, with what was found of them
        self._cases: tuple[tuple[Job, tuple[object, ...], StepCase], ...] = ()
        self.learned = Learned.default() if learned == "default" else learned
        self.own_model = None if learned is None else own_model()
        self._bare: tuple[Job, Job] | None = None  # the last asked, and it without its own runs
        self._seen: tuple[Job, Job] | None = None  # the same, and it as physics sees it

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

    @property
    def constants(self) -> Constants:
        """The fitted constants in use."""
        return self._constants or constants()

    def calibration_factor(self, job: Job, device: Device | None) -> float | None:
        """Return by what measured steps change the model's step on ``device``; None without.

        Published steps change it on GPUs, where the law of the operators answers.
        """
        if job.work is None or device is None:
            return None
        is_measured = job.measured is not None or bool(job.actuals)
        is_published = device.kind == "gpu" and job.work.transformer is None
        if not (is_measured or is_published):
            return None
        anchors = self.anchors(job, job.work)
        bare = step_time(job.work, [device], [job.work.micro_batch], self.constants.device)
        factor, _ = anchors.calibration([device], bare.log_sd, self.constants)
        return float(np.exp(factor[0]))

    @cached_property
    def fleet(self) -> TypeColumns:
        """The catalogue's types as columns."""
        return catalogue_fleet(self.catalogue)

    def fleet_of(self, job: Job) -> TypeColumns:
        """Return the catalogue's types as the job's limits leave them to it, made once."""
        key = job.compute_threads, job.limits.cores, job.is_rehearsed
        if key not in self._limited:
            self._limited[key] = limited_fleet(self.fleet, job)
        return self._limited[key]

    def device_of(self, type_index: int, job: Job | None = None) -> Device | None:
        """Return what a type of the catalogue computes on; None where that is not known.

        ``job`` leaves some of its threads unused where it is limited.
        """
        machines = self.fleet if job is None else self.fleet_of(job)
        place = int(machines.device[type_index])
        return machines.devices[place] if place >= 0 else None

    def side_costs(self, job: Job, offers: Offers) -> SideCosts:
        """Return what storage and outgoing traffic of ``job`` add to each offer."""
        return SideCosts.of(job, self.catalogue.types, offers, self._side_prices)

    @cached_property
    def _side_prices(self) -> SidePrices:
        return side_prices(self.catalogue)

    def case(
        self, job: Job, *, fleet: TypeColumns | None = None, space: SearchSpace | None = None,
        known_network: bool = False, believes: bool = True,
    ) -> StepCase:  # fmt: skip
        """Return what the ways of training need to know of a job with steps, and of machines.

        Of the catalogue's machines it is made once for the jobs asked last, so that the same job
        under other constraints finds the layouts that were searched.

        ``believes``: the job's own runs stand for what laws miss of them; True by default.

        Raises UsageError if the space fixes what only a transformer of known dimensions has.
        """
        asked: dict[str, Any] = {"known_network": known_network, "believes": believes}
        if fleet is not None:
            return self._case(job, limited_fleet(fleet, job), space, **asked)
        # Machines are the same where they are the same object: columns do not compare.
        machines = self.fleet_of(job)
        key = space, known_network, believes, id(self.constants), id(machines)
        for known, with_, case in self._cases:
            if known is job and with_ == key:
                return case
        case = self._case(job, machines, space, **asked)
        self._cases = ((job, key, case), *self._cases)[:_CASES_KEPT]
        return case

    def _case(
        self, job: Job, machines: TypeColumns, space: SearchSpace | None, *, known_network: bool,
        believes: bool,
    ) -> StepCase:  # fmt: skip
        if space is not None:
            check_space(job, space)
        job = commonly_run(self._as_physics_sees(job), space)
        assert job.work is not None
        if space is not None:
            check_stack(space, job.work.setup)
        anchors = self.anchors(job, job.work)
        if machines.is_recorded and anchors.host is not None:
            # The very device that the anchor is of: what was measured holds for it as it is.
            machines = replace(machines, devices=Devices((anchors.host,)))
        if is_known_by_runs(job.work):
            machines = replace(machines, devices=Devices(map(unmeasured, machines.devices)))
        own = self.own_runs.layouts(job)
        constants = self.constants.with_spread(job.spread).with_slack(job.work.slack)
        if own is not None:
            layout = replace(constants.layout, parameters=own.parameters)
            constants = replace(constants, layout=layout)
        return StepCase(
            job=job,
            work=job.work,
            space=_as_recipes_schedule(SPACE if space is None else space, job.work),
            fleet=machines,
            anchors=anchors,
            constants=constants,
            accelerators=self.catalogue.accelerators,
            known_network=known_network,
            own=own,
            clusters=self.own_runs.clusters(job, job.work),
            believed=self.own_runs.believed(job, job.work) if believes else None,
        )

    def physics_columns(
        self, job: Job, type_index: NDArray[np.int64], count: NDArray[np.int64], *,
        fleet: TypeColumns | None = None, space: SearchSpace | None = None,
        known_network: bool = False,
    ) -> TimeColumns:  # fmt: skip
        """Estimate the same by physics alone."""
        if job.work is not None:
            case = self.case(job, fleet=fleet, space=space, known_network=known_network)
            columns = best_columns(case, type_index, count)
        else:
            machines = self.fleet_of(job) if fleet is None else limited_fleet(fleet, job)
            columns = program_columns(job, machines, type_index, count)
        if fleet is not None and fleet.is_recorded and is_answer(job, space):
            return as_recorded(job, columns)
        return columns

    def anchors(self, job: Job, work: Work) -> Anchors:
        """Return the host's measured step and those of real runs; unusable ones are left out."""
        anchors = host_anchor(job, work, self.constants)
        if is_known_by_runs(work):
            return self._anchored_on_runs(anchors, job, work)
        for actual in job.actuals:
            there = self.own_runs.beside(job, work, actual)
            if there is not None:
                anchors = anchors.with_actual(*there)
        return anchors

    def _anchored_on_runs(self, anchors: Anchors, job: Job, work: Work) -> Anchors:
        """Return the anchors with the runs that the work was fitted to, each on one device."""
        runs = measured_runs(job.actuals, self.catalogue, lambda: self.fleet)
        steps = steps_s(work, runs, self.constants.device)
        bare = step_time(work, [run.device for run in runs], [1.0], self.constants.device)
        for run, predicted_s, log_sd in zip(runs, steps, bare.log_sd, strict=True):
            anchors = anchors.with_actual(
                run.device, float(predicted_s), run.step_s, float(log_sd), workers=run.workers
            )
        return replace(anchors, others=self.own_runs.others(job, work, tuple(runs)))

    def step_columns(
        self, job: Job, type_index: NDArray[np.int64], count: NDArray[np.int64], *,
        fleet: TypeColumns | None = None, space: SearchSpace | None = None,
        known_network: bool = False,
    ) -> TimeColumns:  # fmt: skip
        """Estimate one step of ``job`` on ``count`` machines of the types at ``type_index``.

        The one estimate behind every verb: the best layout of every row, by physics, corrected
        where the learned model covers the candidate.

        ``type_index``, ``count``: (n,); rows of the fleet's types; machines used together;
        ``known_network``: leave machines out whose network is not known; False by default.
        """
        columns = self.physics_columns(
            job, type_index, count, fleet=fleet, space=space, known_network=known_network
        )
        return self.corrected(job, columns, fleet=fleet)

    def corrected(
        self, job: Job, columns: TimeColumns, *, fleet: TypeColumns | None = None
    ) -> TimeColumns:
        """Return columns with what was learned from runs, and with what lasts of processors.

        What was learned is asked about machines of the catalogue alone.
        """
        machines = self.fleet_of(job) if fleet is None else fleet
        if self.learned is not None and fleet is None:
            columns = self._by_model(self.learned, job, columns)
        if self.own_model is not None:
            columns = self.own_model.corrected(job, machines, columns)
        return self._lasting(job, columns, machines)

    def _lasting(self, job: Job, columns: TimeColumns, machines: TypeColumns) -> TimeColumns:
        """Return columns with what lasts of processors whose full rate does not."""
        is_endless = job.total_source == NO_LENGTH
        work_h = np.inf if is_endless else columns.step_s * job.paid_steps / HOUR_S
        slower = slowed_by_baseline(
            job, machines, columns.type_index,
            np.broadcast_to(work_h, columns.step_s.shape),
        )  # fmt: skip
        return replace(columns, step_s=columns.step_s * slower)

    def _is_of_processors(self, job: Job) -> bool:
        """Whether more than physics answers for the job: a model, or what lasts of processors."""
        has_model = self.learned is not None and self.learned.may_correct(job)
        baseline = self.catalogue.types.cpu_baseline
        names = set(self.catalogue.types.name[np.nan_to_num(baseline, nan=0.0) != 1.0].tolist())
        return has_model or any(one.instance_type in names for one in job.actuals)

    def _by_model(self, learned: Learned, job: Job, columns: TimeColumns) -> TimeColumns:
        """Return columns corrected by the learned model, the job's own runs among what is known.

        The model is asked of the job as if it had none: what they say stands on top of its answer
        (``_as_physics_sees``), and they know more of the job than its error does.
        """
        if not job.actuals or not learned.may_correct(job):
            return learned.corrected(job, self.catalogue, columns)
        bare = self.physics_columns(self._without_runs(job), columns.type_index, columns.count)
        found = learned.corrected(self._without_runs(job), self.catalogue, bare)
        if found.is_learned is None:
            return columns
        factor = np.where(found.is_learned, found.step_s / bare.step_s, 1.0)
        return replace(columns, step_s=columns.step_s * factor, is_learned=found.is_learned)

    def _without_runs(self, job: Job) -> Job:
        """Return the job without its own runs: one object as long as the job is asked."""
        if self._bare is None or self._bare[0] is not job:
            self._bare = job, replace(job, actuals=())
        return self._bare[1]

    def _as_physics_sees(self, job: Job) -> Job:
        """Return the job with what its own runs left over of the learned answers there.

        Physics is anchored on that, so that a run that took what was answered moves nothing.
        """
        if not job.actuals or not self._is_of_processors(job):
            return job
        # What was taken apart is not taken apart again.
        if self._seen is not None and (
            self._seen[0] is job or job.actuals is self._seen[1].actuals
        ):
            return self._seen[1] if self._seen[0] is job else job
        bare, factors = self._without_runs(job), []
        for actual in job.actuals:
            machines, row, count = place_of(actual, self.catalogue, lambda: self.fleet)
            factor = 1.0
            if machines is self.fleet:
                there = self.physics_columns(bare, row, count)
                learned = self.learned
                found = (
                    there if learned is None else learned.corrected(bare, self.catalogue, there)
                )
                factor = (
                    self._lasting(bare, found, self.fleet_of(bare)).step_s[0] / there.step_s[0]
                )
            factors.append(factor)
        seen = tuple(
            replace(one, step_s=one.step_s / factor) if math.isfinite(factor) else one
            for one, factor in zip(job.actuals, factors, strict=True)
        )
        self._seen = job, replace(job, actuals=seen)
        return self._seen[1]

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
        self, profile: Job | str | Path, configurations: str | Sequence[str | tuple[str, int]], *,
        count: int = 1, provider: str | None = None, region: str | None = None,
        pricing: Pricing = "on-demand", completion: CompletionWay | None = None,
        coverage: float = 0.9,
    ) -> Candidate | Predictions:  # fmt: skip
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
        from advisor.estimate.many import Terms, estimates

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
        self, row: TableRow, *, region: str | None = None, pricing: Pricing = "on-demand"
    ) -> tuple[Offers, int | None]:
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
        self, job: Job, columns: TimeColumns, offers: Offers, offer_row: int, *,
        pricing: Pricing = "on-demand", completion: CompletionWay | None = None,
        coverage: float = 0.9, space: SearchSpace | None = None, known_network: bool = False,
    ) -> Candidate:  # fmt: skip
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
            job, columns, done, offers, side, offer_row=offer_row, column=0, completion_row=0,
            coverage=coverage, steady=on_demand(job, columns, coverage), space=space,
            known_network=known_network,
        )  # fmt: skip

    def candidate(
        self, job: Job, columns: TimeColumns, completion: Completion, offers: Offers,
        side: SideCosts, *, column: int, space: SearchSpace | None = None,
        known_network: bool = False, **row: Any,
    ) -> Candidate:  # fmt: skip
        """Make the object of one row of the columns, rented by one offer.

        ``space``, ``known_network``: as the columns were asked; ``**row``: what else
        ``answer.candidate`` takes.
        """
        asked: dict[str, Any] = {"space": space, "known_network": known_network}
        case = None if job.work is None else self.case(job, **asked)
        return candidate(
            job, self.catalogue, columns, completion, offers, side, column=column,
            why=() if case is None else self._why(case, columns, column),
            device=self.device_of(int(columns.type_index[column]), job),
            case=case, **row,
        )  # fmt: skip

    def _why(self, case: StepCase, columns: TimeColumns, column: int) -> tuple[str, ...]:
        """Say why the layout of one row was chosen."""
        if said := beside_words(columns, column):
            return said
        return reasons(
            case,
            int(columns.type_index[column]),
            int(columns.count[column]),
            columns.layout(column),
            float(columns.step_s[column]),
        )


def commonly_run(job: Job, space: SearchSpace | None) -> Job:
    """Return a described transformer in the stack that it is commonly trained with."""
    work = job.work
    if work is None or work.transformer is None or work.layers or work.setup.stack is not None:
        return job
    asked = space or SearchSpace()
    is_split = any((degree or 1) > 1 for degree in (asked.tp, asked.pp, asked.cp, asked.ep))
    moves = asked.offloads_alone and "zero_stages" in asked.fixed
    stack = usual_stack(work, is_split=is_split, moves_state=moves)
    return job if stack is None else replace(job, work=as_commonly_run(work, stack))


# Parameters from which on NeMo's recipes have stages (Nemotron 22B, four of them).
_LEAST_IN_STAGES: Final = 20e9


def _as_recipes_schedule(space: SearchSpace, work: Work) -> SearchSpace:
    """Return the space with the schedules of whoever runs stages that nobody says how to run.

    In bf16 these are NeMo's recipes, as where a degree is asked for (``usual_stack``): of the
    published runs with stages 50 of 54 on Hopper and Blackwell interleave, 4 of 842 on older cards
    (nearly all in fp16).
    """
    model = work.transformer
    is_open = work.setup.stack is None and space.schedules == SPACE.schedules
    if model is None or not is_open or work.precision != "bf16":
        return space
    if transformer_parameters(model) < _LEAST_IN_STAGES:
        return space
    return replace(space, schedules=STACKS["nemo"].schedules)


def completed(
    job: Job, columns: TimeColumns, catalogue: Catalogue, offers: Offers, offer_row: int,
    side: SideCosts, way: CompletionWay, coverage: float,
    step_columns: Callable[..., TimeColumns],
) -> Completion:  # fmt: skip
    """Return what the only row of the columns takes on the machines of one offer.

    Raises UsageError if the job cannot be completed that way on machines of this offer.
    """
    name = str(catalogue.types.name[int(offers.type_index[offer_row])])
    if (offers.pricing[offer_row] == "spot") != (way != "on-demand"):
        wanted = "on-demand" if way == "on-demand" else "spot"
        raise UsageError(
            f"{way!r} needs {wanted} machines, and those of {name} are offered as "
            f"{offers.pricing[offer_row]}",
            hint=f'ask for pricing="{wanted}"',
        )
    if way == "on-demand":
        return on_demand(job, columns, coverage)
    if way == "spot-by-deadline":
        raise UsageError(
            f"{way!r} needs a deadline", hint="rank machines: advisor recommend --spot --deadline"
        )
    row, band = np.array([0]), offers.spot_interruption_band[[offer_row]]
    if way == "spot":
        return on_spot(job, columns, row, band, coverage)
    # Loaded where spot machines are asked for.
    from advisor.estimate.spot import elastic_workers, on_elastic_spot, on_spot_with_fallback

    if way == "elastic-spot":
        workers = elastic_workers(job, columns, row, step_columns)[0]
        if workers is None:
            raise UsageError(
                f"the job runs on no fewer machines than {int(columns.count[0])} x {name}",
                hint="an elastic job needs several machines that train data-parallel",
            )
        return on_elastic_spot(job, columns, row, band, [workers], coverage)
    price = on_demand_price(offers, offer_row)
    if price is None:
        raise UsageError(
            f"{name} is not sold on demand in {offers.regions[offers.region_index[offer_row]]}",
            hint="choose another region, or plain spot",
        )
    beside = side.usd_per_h[[offer_row]]
    ratio = (offers.price_usd_per_h[[offer_row]] + beside) / (price + beside)
    return on_spot_with_fallback(job, columns, row, band, ratio, coverage)
