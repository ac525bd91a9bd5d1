"""What one ``advisor ui`` shows: the question of the command line, and answers to changes of it.

It computes nothing of its own: the functions that ``advisor recommend`` asks are asked again, with
the catalogue and the models kept between two answers.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final

from advisor import api
from advisor.catalogue import Catalogue
from advisor.collectors import store
from advisor.predict import Predictor
from advisor.question import Question
from advisor.report.page import page
from advisor.ui import controls

_SCRIPTS: Final = ("controls.js", "compare.js", "ui.js")
_STYLES: Final = ("ui.css",)


class Session:
    """A question that was asked, and the answers to its changes.

    Parameters
    ----------
    question : Question
        As the command line asks it.

    Raises
    ------
    AdvisorError
        If the catalogue or the job cannot be read.

    Attributes
    ----------
    question : Question
    first : dict
        The answer to it, without what takes longer.
    """

    def __init__(self, question: Question) -> None:
        self.question = question = _with_name(question)
        self._predictor = Predictor(
            Catalogue.load(question.catalogue, overrides=question.overrides)
        )
        self.first = self.answer(question, False)

    def page(self) -> str:
        """Return the page, with the answer to the command line's question and all controls."""
        first = self.first
        names = sorted(set(self._predictor.catalogue.types.provider.tolist()))
        live = {**first, "groups": controls.controls(tuple(names))}
        return page(
            first["data"],
            live={name: value for name, value in live.items() if name != "data"},
            panel=_asset("panel.html"),
            scripts=[_asset(name) for name in _SCRIPTS],
            styles=[_asset(name) for name in _STYLES],
        )

    def answer(self, question: Question, is_whole: bool) -> dict[str, Any]:
        """Return the answer to a question, as JSON can hold it.

        Parameters
        ----------
        question : Question
        is_whole : bool
            False leaves out what would change the answer and what to change in the job, each of
            which asks more questions.

        Raises
        ------
        AdvisorError, PlanningError
            As ``advisor recommend``.
        """
        data = api.report_data(
            question, predictor=self._predictor, made=_now(), with_changes=is_whole
        )
        return {
            "asked": controls.forms(self.question, question),
            "is_whole": is_whole,
            "exit_code": 0 if data["answer"]["picks"] else 3,
            "data": data,
        }


def _with_name(question: Question) -> Question:
    """Return the question with the latest run's name: a later one is another job."""
    spec = question.job
    is_run = not (spec.is_described or spec.job_file is not None or spec.is_known_by_runs)
    if not is_run or spec.run not in (None, "latest"):
        return question
    return replace(question, job=replace(spec, run=store.latest_run().name))


@cache
def _asset(name: str) -> str:
    """Return one of the application's own files."""
    return (resources.files("advisor.ui") / "assets" / name).read_text(encoding="utf-8")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="minutes")
