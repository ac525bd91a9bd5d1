"""What Python users call; the verbs of the command line call the same functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.actuals import read_actuals
from advisor.catalogue import Catalogue, parse_gpus
from advisor.collectors import store
from advisor.domain import Recommendation
from advisor.job import Job, job_from_recording, with_surroundings
from advisor.predict import Predictor
from advisor.ranking import Request, parse_hours
from advisor.ranking import recommend as rank


def load_job(run: str | Path | None = None, **length: Any) -> Job:
    """Read a recorded run as a job.

    Parameters
    ----------
    run : str, Path or None
        Name or folder of a run; the latest where None.
    **length
        ``epochs``, ``total_steps``, ``total_samples``, ``global_batch``: see
        ``advisor.job.job_from_recording``.

    Raises
    ------
    RecordingError
        If there is no such run, or it cannot be read.
    RunError
        If it lacks what a prediction needs.
    """
    path = store.latest_run() if run is None else store.find_run(str(run))
    job = job_from_recording(store.read_recording(path), **length)
    return replace(job, actuals=read_actuals(path.parent, path.name))


def recommend(
    run: Job | str | Path | None = None,
    *,
    budget: float | None = None,
    deadline: str | float | None = None,
    cloud: str | None = None,
    region: str | None = None,
    gpus: str | None = None,
    max_nodes: int = 8,
    max_price: float | None = None,
    spot: bool = False,
    checkpoints: bool = True,
    mixed: bool = False,
    catalogue: str | Path | None = None,
    coverage: float = 0.9,
    top: int = 10,
    data: str | float | None = None,
    data_rate: str | float | None = None,
    results: str | float | None = None,
    validation: str | float | None = None,
    predictor: Predictor | None = None,
    **length: Any,
) -> Recommendation:
    """Rank cloud configurations for a job by training time and cost.

    Parameters
    ----------
    run : Job, str, Path or None
        A job, or the name or folder of a recorded run; the latest run where None.
    budget : float, optional
        Most to spend on the job. [USD]
    deadline : str or float, optional
        Longest it may take: ``"6h"``, ``"90m"``, or hours. [h]
    cloud : str, optional
        Providers, comma-separated.
    region : str, optional
        Glob.
    gpus : str, optional
        Accelerators per machine: ``"A100:8"``, ``"A100:40GB..80GB:1..8"``.
    max_nodes : int, default 8
    max_price : float, optional
        Of one machine. [USD/h]
    spot : bool, default False
        Admit spot prices beside on-demand ones.
    checkpoints : bool, default True
        The job can go on from a checkpoint; otherwise spot machines are refused.
    mixed : bool, default False
        Admit two types of machines rented together in one region.
    catalogue : str or Path, optional
        Folder of a snapshot other than the bundled (or updated) one.
    coverage : float, default 0.9
        Of the intervals: 0.5, 0.8, 0.9 or 0.95.
    top : int, default 10
        Most candidates shown.
    data, data_rate, results, validation : str or float, optional
        What the job moves and what the ends of its epochs take, where the user knows better than
        the recording: see ``advisor.job.with_surroundings``.
    predictor : Predictor, optional
        Keeps a loaded catalogue between calls; in place of ``catalogue``.
    **length
        As for ``load_job``, where ``run`` is not a ``Job``.

    Returns
    -------
    Recommendation
        Its ``front`` is empty where nothing satisfies the constraints.

    Raises
    ------
    UsageError
        If a constraint makes no sense.
    """
    request = Request(
        budget_usd=budget,
        deadline_h=None if deadline is None else parse_hours(str(deadline)),
        providers=tuple(n.strip().lower() for n in cloud.split(",") if n.strip()) if cloud else (),
        region=region,
        gpus=None if gpus is None else parse_gpus(gpus),
        max_nodes=max_nodes,
        max_price_usd_per_h=max_price,
        pricings=("on-demand", "spot") if spot else ("on-demand",),
        saves_checkpoints=checkpoints,
        mixed=mixed,
        coverage=coverage,
        top=top,
    )
    job = with_surroundings(
        run if isinstance(run, Job) else load_job(run, **length),
        data=data,
        data_rate=data_rate,
        results=results,
        validation=validation,
    )
    return rank(job, request, predictor=predictor or Predictor(Catalogue.load(catalogue)))
