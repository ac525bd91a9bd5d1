"""A submission's own job and limits, joined with those that the gate was told."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.ask import ENTRIES, PREFIX, Question, merged, read_environment
from advisor.errors import UsageError

_LIMITS: Final = ("budget", "deadline", "max_hourly", "confidence")
# A submission says which job it is and how it trains, and may set itself narrower limits; prices,
# quotas and what is admitted are the gate's own.
SAID: Final = frozenset(
    name for name, entry in ENTRIES.items() if entry.part in ("job", "layout", "setup")
) | set(_LIMITS)
_LINE: Final = re.compile(r"#\s?ADVISOR\s+(?P<words>\S.*)")


def from_environment(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what variables ``ADVISOR_NAME`` of a submission say; the others are not its own.

    Raises UsageError if a value makes no sense.

    Examples
    --------
    >>> from_environment({"ADVISOR_RUN": "digits", "ADVISOR_BUDGET": 50, "PATH": "/bin"})
    {'run': 'digits', 'budget': '50'}
    """
    texts = {
        str(name): str(value) for name, value in variables.items()
        if str(name).startswith(PREFIX) and value is not None
    }  # fmt: skip
    return {name: value for name, value in read_environment(texts).items() if name in SAID}


def with_job(said: Mapping[str, Any], text: str, path: Path) -> dict[str, Any]:
    """Return what a submission says, with the recipe that it starts where it names no job itself.

    ``path``: where the submission lies, beside the files that it names.
    """
    from advisor.recipes import recipe

    if Question.read(said).job.names_a_job:
        return dict(said)
    try:
        found = recipe(path, text=text)
        found.check(found.answers)
    except UsageError:  # nothing that is understood
        return dict(said)
    return merged({name: v for name, v in found.answers.items() if name in SAID}, said)


def from_script(text: str) -> dict[str, Any]:
    r"""Return what the lines ``#ADVISOR run=NAME budget=50`` of a script say.

    Raises UsageError if a line has no ``name=value``, or names what a submission cannot say.

    Examples
    --------
    >>> from_script("#!/bin/sh\n#ADVISOR run=digits deadline=6h\nsrun python train.py")
    {'run': 'digits', 'deadline': '6h'}
    """
    found: dict[str, Any] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        for word in _words(match["words"]):
            name, sign, value = word.partition("=")
            name = name.removeprefix("--").replace("-", "_")
            if not sign or name not in SAID:
                raise UsageError(
                    f"cannot read {word[:40]!r} in a line #ADVISOR",
                    hint=f"write name=value with one of: {', '.join(sorted(SAID))}",
                )
            is_switch = not ENTRIES[name].kind.metavar
            found[name] = value.lower() in ("1", "true", "yes", "on") if is_switch else value
    Question.read(found)
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"cannot read the line #ADVISOR {text[:40]}: {error}", hint="close the quotation marks"
        ) from error


def joined(question: Question, said: Mapping[str, Any]) -> Question:
    """Return the question about the submission's job, under the narrower limits of both.

    ``said``: by the names of ``SAID``.
    """
    job = {name: value for name, value in said.items() if name not in _LIMITS}
    asked = Question.read(merged(question.to_record(), job))
    own = Question.read({name: said[name] for name in _LIMITS if name in said}).constraints
    limits = question.constraints
    narrow = replace(
        limits,
        budget_usd=_least(limits.budget_usd, own.budget_usd),
        deadline_h=_least(limits.deadline_h, own.deadline_h),
        max_hourly_usd=_least(limits.max_hourly_usd, own.max_hourly_usd),
        confidence=max(
            (x for x in (limits.confidence, own.confidence) if x is not None), default=None
        ),
    )
    return replace(
        question, job=asked.job, layout=asked.layout, setup=asked.setup, constraints=narrow
    )


def _least(first: float | None, second: float | None) -> float | None:
    return min((x for x in (first, second) if x is not None), default=None)
