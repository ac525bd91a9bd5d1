"""A submission judged from start to end: its job read, its own limits joined, then decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from advisor import api
from advisor.catalogue import Catalogue
from advisor.collectors.errors import RecordingError
from advisor.errors import AdvisorError
from advisor.gate.decision import decide
from advisor.gate.records import GateVerdict, Judged, Reason, Submission, Unclear
from advisor.gate.said import joined
from advisor.planners.core.errors import PlanningError
from advisor.predict import Predictor
from advisor.question import Question

Read = Callable[[Catalogue], Submission]


def judge(
    read: Read, question: Question, *, predictor: Predictor | None = None, is_strict: bool = True
) -> GateVerdict:
    """Judge what is read, about the job that it or the question names; the latest run otherwise.

    Parameters
    ----------
    read : callable
        From the catalogue to the submission.
    is_strict : bool, default True
        As of ``decide``.

    Raises
    ------
    AdvisorError
        If the job or the submission cannot be read; as ``decide`` otherwise.
    """
    known = predictor or Predictor(
        Catalogue.load(question.catalogue, overrides=question.overrides)
    )
    submission = read(known.catalogue)
    asked = joined(question, submission.said)
    job = api.job_of(asked.job, asked.setup, catalogue=lambda: known.catalogue)
    recording = api.recording_of(asked.job)
    return decide(
        job, submission, asked, predictor=known, recording=recording, is_strict=is_strict
    )


def judge_submission(
    read: Read, question: Question, *, predictor: Predictor | None = None, is_strict: bool = False
) -> GateVerdict:
    """Judge what somebody submits elsewhere: what cannot be judged passes, with a note.

    A job has to be named by the submission or the question: the latest run is not meant.

    Parameters
    ----------
    read, question, predictor
        As of ``judge``.
    is_strict : bool, default False
        Refuse what cannot be judged.
    """

    def named(catalogue: Catalogue) -> Submission:
        found = read(catalogue)
        spec = joined(question, found.said).job
        if not (spec.names_a_job or spec.is_known_by_runs):
            raise _Unnamed
        return found

    try:
        found = judge(named, question, predictor=predictor, is_strict=False)
    except _Unnamed:
        found = _unclear("the submission does not say which job it is (ADVISOR_RUN, #ADVISOR)")
    except (AdvisorError, PlanningError, RecordingError) as error:
        hint = f"; {error.hint}" if error.hint else ""
        found = _unclear(f"{error}{hint}")
    return _refused_where_unclear(found) if is_strict else found


class _Unnamed(Exception):  # noqa: N818 # never leaves this module
    """The submission names no job."""


def _unclear(why: str) -> GateVerdict:
    return GateVerdict(
        run="", judged=(Judged(asked=Unclear(label="the submission", why=why), note=why),)
    )


def _refused_where_unclear(found: GateVerdict) -> GateVerdict:
    judged = tuple(
        one
        if one.is_judged
        else replace(one, reasons=(Reason(limit="machines", text="cannot be judged"),))
        for one in found.judged
    )
    return replace(found, judged=judged)
