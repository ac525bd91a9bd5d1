"""Functions for Python users; the verbs of the command line call the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor import advice
from advisor.advice import AdviceList, cures_for, facts_here, facts_on, sharing_with
from advisor.answer import Answer, Candidate, CompletionWay, Recommendation
from advisor.ask import ENTRIES, JobSpec, LayoutRequest, Question, layout_space
from advisor.catalogue import Catalogue
from advisor.collectors.derive import find_run, latest_run, ratio, read_recording
from advisor.collectors.format import Recording
from advisor.errors import RunError, UsageError
from advisor.estimate import (
    JOB_NAMES,
    Predictor,
    estimate_here,
    estimate_on_gpu,
    estimate_on_type,
    find_job,
    is_step_uncertain,
    job_of,
    machine_at_hand,
)
from advisor.jobs import Job, check_length, load_job
from advisor.quantities import QUANTILES, parse_rate, percent_text
from advisor.rank import Fitting, fitting
from advisor.rank import recommend as rank

if TYPE_CHECKING:
    from advisor.advice import Serving
    from advisor.planners.systems import MeasuredPair

__all__ = [
    "advise", "advised", "answer", "estimate", "find_job", "fit", "job_of", "job_to_advise",
    "load_job", "ranked", "recommend", "report_data", "report_page",
]  # fmt: skip

Beside = Callable[[Job, Recommendation, Predictor], Mapping[str, Any] | None]
# What a recommendation can be asked, by the names of ``advisor.ask.entries``.
_NAMES: Final = (
    JOB_NAMES
    | {name for name, entry in ENTRIES.items() if entry.part in ("constraints", "layout")}
    | {"catalogue", "overrides"}
)


def recommend(
    run: Job | Question | str | Path | None = None,
    *,
    predictor: Predictor | None = None,
    **asked: Any,
) -> Recommendation:
    """Rank cloud configurations for a job by training time and cost.

    Raises UsageError if a keyword is unknown, or a value makes no sense.

    Parameters
    ----------
    run : Job, Question, str, Path or None
        A job; all that is asked in one record; or the name or folder of a recorded run. Where
        None, the job that the keywords name (``model="llama"``, ``job_file="job.json"``,
        ``layers=...``), and otherwise the latest run.
    predictor : Predictor, optional
        Keeps a loaded catalogue between calls; in place of ``catalogue``.
    **asked
        The options of the command line, with underscores: ``budget=50``, ``deadline="1h30m"``,
        ``gpus="A100:8"``, ``max_nodes=4``, ``tokens="15B"``, ``tp=8``, ``kernels="compiled"``, ...
        ``advisor.ask.entries`` lists them all with their help.

    Returns
    -------
    Recommendation
        Its ``front`` is empty where nothing satisfies the constraints.
    """
    job = run if isinstance(run, Job) else None
    return answer(_question(run, asked), job=job, predictor=predictor)


def fit(
    run: Job | Question | str | Path | None = None,
    *,
    gpu: str | None = None,
    on: str | None = None,
    count: int = 1,
    predictor: Predictor | None = None,
    **asked: Any,
) -> Fitting:
    """Say what makes a job fit in memory: changes in order, what each gains and costs.

    Raises UsageError if not exactly one of ``on`` and ``gpu`` is given, or a value makes no sense.
    Raises DoesNotRunError if the job cannot run there for another reason than memory.

    Parameters
    ----------
    gpu : str, optional
        An accelerator of any provider.
    on : str, optional
        A machine type, ``"g5.xlarge"`` or ``"aws:g5.xlarge"``.
    count : int, default 1
        Accelerators, or machines.
    """
    question = _question(run, asked)
    job = run if isinstance(run, Job) else None
    known = predictor or _predictor(question)
    return fitting(question, known, gpu=gpu, on=on, count=count, job=job)


def advise(
    run: Job | Question | str | Path | None = None,
    *,
    on: str | None = None,
    count: int = 1,
    beside: str | Path | Job | None = None,
    pairs: str | Path | Sequence[MeasuredPair] = (),
    serving: Serving | bool = False,
    borrow: str | float | None = None,
    predictor: Predictor | None = None,
    **asked: Any,
) -> AdviceList:
    """Say what would make a job faster or cheaper, before anything is rented.

    Raises UsageError if a keyword is unknown or a value makes no sense. Raises DoesNotRunError if
    the job cannot run there.

    Parameters
    ----------
    on : str, optional
        The machines the job is judged on: ``"g5.xlarge"``, ``"aws:g5.xlarge"``, or ``"here"``.
        By default those that ``recommend`` would pick.
    beside : Job, str or Path, optional
        Another job, or its run: what sharing a device with it would save.
    pairs : str, Path or sequence of MeasuredPair, optional
        With ``beside``: jobs measured beside each other on such a device, by the names of their
        runs; a path is of a CSV with ``first,second,first_rate,second_rate``.
    serving : Serving or bool, default False
        In place of all other advice: how many experts a machine that serves the model holds.
    borrow : str or float, optional
        What memory of other machines is reached over (``"25GB/s"``; bytes a second): what a
        smaller machine that borrows some would take.

    Returns
    -------
    AdviceList
        The strongest first; empty where the recording shows nothing to change.
    """
    question = _question(run, asked)
    job = run if isinstance(run, Job) else None
    known = predictor or _predictor(question)
    found = job_to_advise(question, known, job=job)
    recording = None if job is not None else recording_of(question.job)
    if isinstance(beside, str | Path):
        beside = job_of(JobSpec(run=str(beside)))
    if isinstance(pairs, str | Path):
        pairs = advice.read_pairs(Path(pairs))
    return advised(
        found, question, recording, on=on, count=count, beside=beside, pairs=pairs,
        predictor=known,
        serving=(advice.Serving() if serving is True else serving or None),
        borrow=None if borrow is None else parse_rate(borrow),
    )  # fmt: skip


def advised(
    job: Job, question: Question, recording: Recording | None = None, *, on: str | None = None,
    count: int = 1, beside: Job | None = None, pairs: Sequence[MeasuredPair] = (),
    predictor: Predictor,
    answer: Recommendation | None = None, serving: Serving | None = None,
    borrow: float | None = None,
) -> AdviceList:  # fmt: skip
    """Return the advice on a job that is already what the question says; see ``advise``.

    ``answer`` is the question's recommendation, where it has been made; ``borrow`` [bytes/s].
    """
    limits = replace(question.constraints, space=layout_space(question.layout))
    if serving is not None:
        served = advice.serving_advice(
            job, recording, serving, predictor.catalogue, on=on, constraints=limits
        )
        return AdviceList(run=job.name, now=None, advice=(served,))
    is_met, chosen = True, None
    if on is None:
        found = answer or ranked(job, question, predictor=predictor, with_changes=False)
        is_met, chosen = _picked(found)
    elif on != "here":
        provider, _, name = on.rpartition(":")
        chosen = predictor.predict(
            job, name, count=count, provider=provider or None, coverage=limits.coverage
        )
    facts = (
        facts_here(predictor, job, recording, constraints=limits)
        if chosen is None
        else facts_on(predictor, job, chosen, recording, constraints=limits)
    )
    if facts is None:
        raise _not_here(job, recording)
    facts = replace(facts, borrow_bytes_per_s=borrow)
    kept = () if borrow is None else ("borrow-memory",)
    if beside is None:
        said = cures_for(facts, kept=kept)
    else:
        kept = ("share-device", "take-turns", *kept)
        said = cures_for(facts, sharing_with(beside, pairs), kept=kept)
    is_whole = recording is None or job.program is None or recording.status == "finished"
    said, notes = advice.noted(said, facts)
    return AdviceList(
        run=job.name, now=facts.now, advice=said, meets_constraints=is_met, is_whole=is_whole,
        serving=advice.serving_words(job, recording, predictor.catalogue, limits),
        notes=notes,
    )  # fmt: skip


def _not_here(job: Job, recording: Recording | None) -> UsageError:
    """Return what is said of a job that this machine has no answer for; noise with its figures."""
    said = f"{job.name} cannot be estimated on this machine"
    if job.measured is None or not is_step_uncertain(job):
        return UsageError(said, hint="name a machine: --on aws:g5.xlarge")
    said += (
        f": its time is known to a factor of {ratio(job.measured.log_sd, job.length_log_sd):.2g}"
    )
    if recording is not None and recording.contention > 0:
        said += (
            f", as it waited {percent_text(recording.contention)} of the time for other programs"
        )
    return UsageError(said, hint="close other programs and profile again: --precise --for 10m")


def recording_of(spec: JobSpec) -> Recording | None:
    """Return the recorded run that is meant; None for a job file or a described model."""
    if spec.is_described or spec.job_file is not None or spec.is_known_by_runs:
        return None
    is_latest = spec.run in (None, "latest")
    return read_recording(latest_run() if is_latest else find_run(str(spec.run)))


def _picked(found: Recommendation) -> tuple[bool, Candidate | None]:
    """Return whether the constraints can be kept, and the best value; None for this machine."""
    pick = found.picks.get("best_value")
    if pick == "here":
        return True, None
    rows = [one for one in found.front or found.nearest if len(one.configuration.parts) == 1]
    chosen = next((one for one in rows if one.rank == pick), rows[0] if rows else None)
    return pick is not None, chosen


def _question(run: Job | Question | str | Path | None, asked: dict[str, Any]) -> Question:
    """Return the question of a call from Python."""
    if isinstance(run, Question):
        if asked:
            raise UsageError(
                f"{next(iter(asked))!r} cannot be combined with a whole question",
                hint="put it into the question",
            )
        return run
    if isinstance(run, str | Path):
        if "run" in asked:
            raise UsageError("two runs are given", hint="name one of them")
        asked["run"] = run
    return Question.read(asked, names=_NAMES)


def _predictor(question: Question) -> Predictor:
    return Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))


def job_to_advise(question: Question, predictor: Predictor, *, job: Job | None = None) -> Job:
    """Return the job that advice is asked of; of a stopped program what was seen of it.

    ``job``: the job meant, changed as the question says.

    Raises RunError, UsageError as ``job_of``.
    """
    try:
        return job_of(question.job, question.setup, job=job, catalogue=lambda: predictor.catalogue)
    except RunError:
        recording = None if job is not None else recording_of(question.job)
        if recording is None or recording.step_time is not None or recording.rounds is not None:
            raise
        if recording.status not in ("stopped", "interrupted") or not recording.readings:
            raise
        from advisor.jobs import program_so_far

        return program_so_far(recording)


def _asked(
    question: Question, job: Job | None, predictor: Predictor | None
) -> tuple[Predictor, Job, Recording | None]:
    """Return what answers a question, the job that is meant, and what was seen of it."""
    known = predictor or _predictor(question)
    found = job_of(question.job, question.setup, job=job, catalogue=lambda: known.catalogue)
    return known, found, None if job is not None else recording_of(question.job)


def answer(
    question: Question, *, job: Job | None = None, predictor: Predictor | None = None
) -> Recommendation:
    """Answer a question with a recommendation.

    ``job``: the job meant, changed as the question says; in place of one that the question names.

    Raises UsageError if the question names no job that can be read, or its values contradict one
    another.
    """
    known, found, recording = _asked(question, job, predictor)
    return ranked(found, question, predictor=known, recording=recording)


def ranked(
    job: Job, question: Question, *, predictor: Predictor, recording: Recording | None = None,
    with_changes: bool = True, in_full: bool = False,
) -> Recommendation:  # fmt: skip
    """Rank configurations for a job that is already what the question says.

    ``recording`` is what was seen of it, ``with_changes`` asks what would change the answer;
    ``in_full`` is that of ``ranking.recommend``.

    Raises UsageError if nobody said how long the job is.
    """
    check_length(job)
    constraints = replace(question.constraints, space=layout_space(question.layout))
    here = machine_at_hand(
        predictor, job, price_usd_per_h=constraints.here_usd_per_h, coverage=constraints.coverage,
        space=constraints.space,
    )  # fmt: skip
    return rank(
        job, constraints, predictor=predictor, here=here, recording=recording,
        with_changes=with_changes, in_full=in_full,
    )  # fmt: skip


def report_data(
    question: Question, *, job: Job | None = None, predictor: Predictor | None = None,
    made: str = "", beside: Beside | None = None, with_changes: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Answer a question with all that ``advisor report`` shows, as plain JSON.

    ``made``: when; ISO 8601; ``beside``: asked with the job, the answer and the predictor for what
    is held against the answer: the record ``own_cluster`` of a comparison, or None;
    ``with_changes``: also what would change the answer, the advice and where each number is from,
    all of which ask more questions; True by default.

    Raises UsageError as of ``answer``.

    Returns
    -------
    dict
        See ``advisor.report.page.page_data``.
    """
    from advisor.report import page_data

    known, found, recording = _asked(question, job, predictor)
    given = ranked(found, question, predictor=known, recording=recording, in_full=with_changes,
                   with_changes=with_changes)  # fmt: skip
    said = None
    if with_changes and (given.here is not None or given.front or given.nearest):
        said = advised(found, question, recording, predictor=known, answer=given)
    asked = {name: one for name, one in question.to_record().items() if name != "schema_version"}
    own = None if beside is None else beside(found, given, known)
    return page_data(
        given, recording=recording, advice=said, own_cluster=own, asked=asked, made=made
    )


def report_page(
    run: Job | Question | str | Path | None = None,
    *,
    predictor: Predictor | None = None,
    made: str = "",
    **asked: Any,
) -> str:
    """Return the page of ``advisor report``: one HTML text that loads nothing.

    ``made``: when, for the foot of the page; ISO 8601.

    Raises UsageError if a keyword is unknown, or a value makes no sense.
    """
    from advisor.report import answer_page

    job = run if isinstance(run, Job) else None
    return answer_page(report_data(_question(run, asked), job=job, predictor=predictor, made=made))


def estimate(
    job: Job,
    *,
    on: str | None = None,
    gpu: str | None = None,
    count: int = 1,
    coverage: float = 0.9,
    layout: LayoutRequest | None = None,
    completion: CompletionWay | None = None,
    known_network: bool = False,
    predictor: Predictor | None = None,
) -> Answer:
    """Estimate a job on one configuration, with its parts and where each number is from.

    Raises UsageError if not exactly one of ``on`` and ``gpu`` is given. Raises DoesNotRunError if
    the job cannot run there.

    Parameters
    ----------
    on : str, optional
        A machine type, ``"g5.xlarge"`` or ``"aws:g5.xlarge"``; ``"here"`` is this machine.
    gpu : str, optional
        An accelerator in place of a machine.
    count : int, default 1
        Machines, or accelerators: in as many equal machines as hold them.
    layout : LayoutRequest, optional
        What is fixed of the layout; the best otherwise.
    completion : CompletionWay, optional
        What the job runs on until it is done; machines that stay by default.
    known_network : bool, default False
        Refuse machines whose network is assumed rather than known.
    """
    if (on is None) == (gpu is None):
        raise UsageError("name either --on or --gpu", hint="--on aws:g5.xlarge, or --gpu L4")
    if coverage not in QUANTILES:
        known = ", ".join(str(one) for one in QUANTILES)
        raise UsageError(f"--coverage {coverage} is not available", hint=f"one of: {known}")
    if completion is not None and (gpu is not None or on == "here"):
        raise UsageError(
            f"--completion {completion} applies only to rented machines",
            hint="name a machine type: --on aws:g5.xlarge",
        )
    known_predictor = predictor or Predictor()
    space = None if layout is None else layout_space(layout)
    if gpu is not None:
        return estimate_on_gpu(
            known_predictor, job, gpu, count=count, coverage=coverage, space=space,
            known_network=known_network,
        )  # fmt: skip
    if on == "here":
        return estimate_here(known_predictor, job, coverage=coverage, space=space)
    provider, _, name = str(on).rpartition(":")
    return estimate_on_type(
        known_predictor,
        job,
        name,
        provider=provider or None,
        count=count,
        coverage=coverage,
        space=space,
        completion=completion,
        known_network=known_network,
    )
