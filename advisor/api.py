"""What Python users call; the verbs of the command line call the same functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.catalogue import Catalogue
from advisor.domain import QUANTILES, CompletionWay, Recommendation
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.jobs.loading import load_job
from advisor.predict import Predictor
from advisor.predict.at_hand import at_hand
from advisor.predict.estimate import (
    StepEstimate,
    estimate_here,
    estimate_on_gpu,
    estimate_on_type,
)
from advisor.predict.known_job import JOB_NAMES, find_job, job_of
from advisor.question import ENTRIES, LayoutRequest, Question
from advisor.question.layout import layout_space
from advisor.ranking import recommend as rank

__all__ = ["answer", "estimate", "find_job", "job_of", "load_job", "ranked", "recommend"]

# What a recommendation can be asked, by the names of ``advisor.question.entries``.
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
        ``advisor.question.entries`` lists them all with their help.

    Returns
    -------
    Recommendation
        Its ``front`` is empty where nothing satisfies the constraints.

    Raises
    ------
    UsageError
        If a keyword is unknown, or a value makes no sense.
    """
    job = run if isinstance(run, Job) else None
    if isinstance(run, Question):
        if asked:
            raise UsageError(
                f"{next(iter(asked))!r} cannot be combined with a whole question",
                hint="put it into the question",
            )
        return answer(run, predictor=predictor)
    if isinstance(run, str | Path):
        if "run" in asked:
            raise UsageError("two runs are given", hint="name one of them")
        asked["run"] = run
    return answer(Question.read(asked, names=_NAMES), job=job, predictor=predictor)


def answer(
    question: Question, *, job: Job | None = None, predictor: Predictor | None = None
) -> Recommendation:
    """Answer a question with a recommendation.

    Parameters
    ----------
    question : Question
    job : Job, optional
        The job meant, changed as the question says; in place of one that the question names.
    predictor : Predictor, optional
        Keeps a loaded catalogue between calls.

    Raises
    ------
    UsageError
        If the question names no job that can be read, or its values contradict one another.
    """
    known = predictor or Predictor(
        Catalogue.load(question.catalogue, overrides=question.overrides)
    )
    found = job_of(question.job, question.setup, job=job, catalogue=lambda: known.catalogue)
    return ranked(found, question, predictor=known)


def ranked(job: Job, question: Question, *, predictor: Predictor) -> Recommendation:
    """Rank configurations for a job that is already what the question says."""
    constraints = replace(question.constraints, space=layout_space(question.layout))
    here = at_hand(
        predictor, job, price_usd_per_h=constraints.here_usd_per_h, coverage=constraints.coverage
    )
    return rank(job, constraints, predictor=predictor, here=here)


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
) -> StepEstimate:
    """Estimate a job on one configuration, with its parts and where each number is from.

    Parameters
    ----------
    job : Job
    on : str, optional
        A machine type, ``"g5.xlarge"`` or ``"aws:g5.xlarge"``; ``"here"`` is this machine.
    gpu : str, optional
        An accelerator in place of a machine.
    count : int, default 1
        Machines, or accelerators of one machine.
    coverage : float, default 0.9
    layout : LayoutRequest, optional
        What is fixed of the layout; the best otherwise.
    completion : CompletionWay, optional
        What the job runs on until it is done; machines that stay by default.
    known_network : bool, default False
        Refuse machines whose network is assumed rather than known.
    predictor : Predictor, optional
        Keeps a loaded catalogue between calls.

    Raises
    ------
    UsageError
        If not exactly one of ``on`` and ``gpu`` is given, or the job cannot run there.
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
            known_predictor, job, gpu, count=count, coverage=coverage, space=space
        )
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
