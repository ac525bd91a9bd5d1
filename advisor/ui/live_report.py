"""The content of one ``advisor ui``: the command line's question, and answers to its changes.

It computes nothing of its own: the functions that ``advisor recommend`` asks are asked again, with
the catalogue and the models kept between two answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final

from advisor import api
from advisor.answer import Recommendation
from advisor.ask import Question, command_words, layout_space
from advisor.catalogue import Catalogue
from advisor.collectors.derive import latest_run, list_runs
from advisor.collectors.errors import shell_line
from advisor.errors import UsageError
from advisor.estimate import SPACE, Predictor
from advisor.export import TARGETS, export_to
from advisor.jobs import Job
from advisor.report import answer_page, asset
from advisor.simulate import ClusterComparison
from advisor.ui import controls
from advisor.ui.judged import judged

Beside = Callable[[Question, Job, Recommendation, Predictor], ClusterComparison | None]

_SCRIPTS: Final = ("controls.js", "compare.js", "hand_over.js", "ui.js")
_OWN: Final = "advisor.ui"
_MOST_RUNS: Final = 200  # that the page lists; others are asked for by their name in the address


def _export_asked(body: Mapping[str, Any]) -> tuple[str, int | None, dict[str, str]]:
    """Return target, row (None is the best value) and ``--set`` values that a browser posts.

    Raises UsageError if a value is of another kind.
    """
    to, rank, values = body.get("to"), body.get("rank"), body.get("values", {})
    is_values = isinstance(values, dict) and all(
        isinstance(one, str) and one.isprintable() for one in values.values()
    )
    is_rank = rank is None or (isinstance(rank, int) and not isinstance(rank, bool))
    if not (isinstance(to, str) and is_rank and is_values):
        raise UsageError(
            "cannot read the export that is asked for",
            hint="name a target, a row and texts for the values",
        )
    return to, rank, {k: v for k, v in values.items() if v}


class LiveReport:
    """A question that was asked, and the answers to its changes.

    ``beside``: from question, job, answer and predictor to the comparison with the user's own
    cluster; None where the question names none; ``is_shared``: whether the job can be changed too.

    Raises AdvisorError if the catalogue cannot be read, or there is no run.
    """

    def __init__(
        self, question: Question, *, beside: Beside | None = None, is_shared: bool = False
    ) -> None:
        self._beside = beside
        self._is_shared = is_shared
        self._names = controls.TEAM_NAMES if is_shared else controls.NAMES
        self.question = with_name(question)
        self.predictor = Predictor(
            Catalogue.load(question.catalogue, overrides=question.overrides)
        )

    def changed(self, posted: Any) -> Question:
        """Return the question with everything that a browser can change as it says.

        Raises UsageError as ``controls.changed``, or if a run is not in the store.
        """
        question = controls.changed(self.question, posted, self._names)
        run = question.job.run
        if run not in (None, self.question.job.run) and run not in self.runs():
            raise UsageError(
                f"run: there is no run {str(run)[:80]!r} in the store",
                hint="give its whole name: /api/runs lists them",
            )
        return question

    def runs(self) -> tuple[str, ...]:
        """Return the names of the runs in the store, the latest first; a URL's are brought here.

        Raises RecordingError if the store cannot be read.
        """
        return tuple(run.name for run in reversed(list_runs()))

    def page(self, reply: bytes) -> str:
        """Return the page, with an answer that ``reply`` gave and all controls."""
        found = json.loads(reply)
        names = sorted(set(self.predictor.catalogue.types.provider.tolist()))
        runs = self.runs()[:_MOST_RUNS] if self._is_shared else None
        live = {**found, "groups": controls.controls(tuple(names), runs=runs),
                "targets": _targets(), "is_shared": self._is_shared}  # fmt: skip
        return answer_page(
            found["data"],
            live={name: value for name, value in live.items() if name != "data"},
            panel=asset("panel.html", _OWN),
            scripts=[asset(name, _OWN) for name in _SCRIPTS],
            styles=[asset("ui.css", _OWN)],
        )

    def reply(self, question: Question, is_whole: bool) -> bytes:
        """Return the answer to a question as JSON.

        Raises AdvisorError, PlanningError as ``advisor recommend``.
        """
        return json.dumps(
            self.answer(question, is_whole), separators=(",", ":"), allow_nan=False
        ).encode()

    def answer(self, question: Question, is_whole: bool) -> dict[str, Any]:
        """Return the answer to a question, as JSON can hold it.

        ``is_whole``: false leaves out what would change the answer and what to change in the job,
        each of which asks more questions.

        Raises AdvisorError, PlanningError as ``advisor recommend``.
        """
        own: ClusterComparison | None = None

        def beside(job: Job, answer: Recommendation, predictor: Predictor) -> Any:
            nonlocal own
            own = self._beside and self._beside(question, job, answer, predictor)
            return own and own.to_record()["own_cluster"]

        data = api.report_data(
            question, predictor=self.predictor, made=_now(), with_changes=is_whole, beside=beside
        )
        is_met = bool(data["answer"]["picks"]) or (own is not None and own.meets_constraints)
        return {
            "asked": controls.forms(self.question, question, self._names),
            "is_whole": is_whole,
            "exit_code": 0 if is_met else 3,
            "data": data,
        }

    def judge(self, question: Question, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``advisor gate`` says of a submission, as its record.

        ``body``: ``on`` and ``count``, or the text of a SkyPilot task (``skypilot``) or a batch
        script (``script``, with ``partitions``: what a machine of each is).

        Raises AdvisorError as ``advisor gate``.
        """
        found = judged(body, question, self.predictor, self.changed)
        record: dict[str, Any] = {**found.to_record(), "passes": found.passes}
        return record

    def export(
        self, question: Question, record: Mapping[str, Any], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a candidate in the words of a tool that runs it.

        ``record``: of the answer; ``body``: ``to``, ``rank`` and ``values``.

        Raises AdvisorError as ``advisor export``.

        Returns
        -------
        dict
            ``command``, which does the same, and the record of ``export.Exported``.
        """
        to, rank, values = _export_asked(body)
        made = export_to(
            record, to, rank=rank, values=values, predictor=self.predictor,
            job=api.job_of(
                question.job, question.setup, catalogue=lambda: self.predictor.catalogue
            ),
            recording=api.recording_of(question.job),
            space=layout_space(question.layout) or SPACE,
        )  # fmt: skip
        words = command_words(question.to_record(), "export")
        row = [] if rank is None else [str(rank)]
        given = [word for pair in values.items() for word in ("--set", "=".join(pair))]
        line = shell_line([*words[:2], *row, "--to", to, *given, *words[2:]])
        return {"command": line, **made.to_record()}


def _targets() -> list[dict[str, Any]]:
    """Return what can be exported to, each with the values that only the user knows."""
    return [
        {"name": name, "blanks": {key: asdict(one) for key, one in target.blanks.items()}}
        for name, target in TARGETS.items()
    ]


def with_name(question: Question) -> Question:
    """Return the question with the latest run's name: a later one is another job."""
    spec = question.job
    is_run = not (spec.is_described or spec.job_file is not None or spec.is_known_by_runs)
    if not is_run or spec.run not in (None, "latest"):
        return question
    return replace(question, job=replace(spec, run=latest_run().name))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="minutes")
