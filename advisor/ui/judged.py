"""Submissions that are posted to a team's server, judged as ``advisor gate`` judges them.

They are texts: no path is followed. What a submission says of its job is admitted as a question of
the page's is: a described job, or a run of the store by its whole name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from advisor.ask import Question
from advisor.catalogue import Catalogue
from advisor.errors import UsageError
from advisor.estimate import Predictor
from advisor.gate import (
    AskedMachines,
    GateVerdict,
    Submission,
    from_script,
    judge,
    judge_submission,
    parse_partitions,
    read_submission,
    read_task,
)
from advisor.recipes import directives

_KINDS: Final = ("on", "skypilot", "script")


def judged(
    body: Mapping[str, Any], question: Question, predictor: Predictor,
    admitted: Callable[[Mapping[str, Any]], Question],
) -> GateVerdict:  # fmt: skip
    """Return what the gate says of what is posted.

    ``body``: one of ``on``, ``skypilot`` and ``script``, texts; ``count``; ``partitions``: texts
    by name; ``strict``; ``admitted``: raises UsageError for what a submission may not say.

    Raises UsageError if the body names none or several of them, or a value is of another kind.
    """
    kinds = [name for name in _KINDS if body.get(name) is not None]
    if len(kinds) != 1:
        raise UsageError(
            f"name one thing to judge: {', '.join(_KINDS)}", hint='{"on": "aws:p4d.24xlarge"}'
        )
    text = _text(body, kinds[0])
    if kinds == ["on"]:
        return judge(lambda _: _machines(question, text, body), question, predictor=predictor)

    known = _partitions(body)

    def read(catalogue: Catalogue) -> Submission:
        found = read_task(text, catalogue) if kinds == ["skypilot"] else _script(text, known)
        admitted(dict(found.said))
        return found

    return judge_submission(
        read, question, predictor=predictor, is_strict=body.get("strict") is True
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    text = body[name]
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{name} must be a text", hint="send its text")
    return text


def _machines(question: Question, on: str, body: Mapping[str, Any]) -> Submission:
    count = body.get("count", 1)
    if isinstance(count, str) and count.isascii() and count.isdigit():
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 4096:
        raise UsageError("count: cannot read the number of machines", hint="1 to 4096")
    return AskedMachines.named(on, count, question.completion)


def _partitions(body: Mapping[str, Any]) -> dict[str, str]:
    given = body.get("partitions", {})
    if not isinstance(given, dict) or not all(isinstance(one, str) for one in given.values()):
        raise UsageError(
            "partitions must be an object of texts", hint='{"gpu": "8xA100-80GB:nvlink@200Gbps"}'
        )
    return parse_partitions([f"{name}={machine}" for name, machine in given.items()])


def _script(text: str, partitions: Mapping[str, str]) -> Submission:
    return replace(read_submission(directives(text), {}, partitions), said=from_script(text))
