"""What the program writes it reads again: every noun of a job file, whatever its values."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from advisor.answer import from_record, to_record
from advisor.collectors.derive import Resources
from advisor.collectors.format.recording import Sheet
from advisor.errors import AdvisorError
from advisor.jobs.job import Job
from advisor.jobs.load import read_job, write_job
from advisor.planners.core import Operator, Operators
from advisor.planners.core.errors import PlanningError

NUMBERS = st.floats(0.0, 1e28, allow_nan=False)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    # Sizes of most nouns are not 0.
    float: NUMBERS, int: st.one_of(st.integers(1, 10**9), st.integers(0, 10**9)),
    str: st.text(max_size=5),
    bool: st.booleans(), type(None): st.none(),
}  # fmt: skip


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field, nouns in it too."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if kind is Operators:
        return st.lists(nouns(Operator), max_size=2).map(Operators.of)
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin in (typing.Union, UnionType):
        return st.one_of(*map(values, inner))
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is frozenset:
        return st.frozensets(values(inner[0]), max_size=2)
    if kind is Sheet:
        return st.fixed_dictionaries({"name": st.text(max_size=5), "matmul_flop_per_s": NUMBERS})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    return nouns(kind)


@st.composite
def nouns(draw: st.DrawFn, kind: Any) -> Any:
    """Nouns of a kind; what it refuses is no example."""
    hints = typing.get_type_hints(kind)
    asked = {one.name: draw(values(hints[one.name])) for one in fields(kind) if one.init}
    try:
        return kind(**asked)
    except (ValueError, PlanningError, AdvisorError):
        assume(False)


def kinds(kind: Any) -> Iterator[Any]:
    """Yield every noun that a kind is made of, itself last; of columns their rows'."""
    kind = Operator if kind is Operators else kind
    if is_dataclass(kind):
        for hint in typing.get_type_hints(kind).values():
            yield from kinds(hint)
        yield kind
    for inner in typing.get_args(kind):
        yield from kinds(inner)


# A job and its work are made of too many others to meet their rules by chance: see below.
OF_A_JOB = [one for one in dict.fromkeys(kinds(Job)) if one.__name__ not in ("Job", "Work")]


def test_the_nouns_of_a_job_have_those_with_mappings_among_them() -> None:
    assert {"Resources", "TrainingSetup", "Operator", "Layout", "Told"} <= {
        one.__name__ for one in OF_A_JOB
    }


@pytest.mark.parametrize("kind", OF_A_JOB, ids=lambda kind: kind.__name__)
def test_every_noun_of_a_job_is_read_as_it_was_written(kind: Any) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(nouns(kind))
    def holds(noun: Any) -> None:
        record = json.loads(json.dumps(to_record(noun)))
        assert from_record(kind, record, is_strict=True) == noun

    holds()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(resources=nouns(Resources), epochs=NUMBERS, name=st.text(min_size=1, max_size=8))
def test_a_job_file_written_again_is_the_same_file(
    tmp_path: Path, make_job: Callable[..., Job], resources: Resources, epochs: float, name: str
) -> None:
    job = replace(make_job(resources=resources), epochs=epochs, name=name)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_job(job, first)
    found = read_job(first)
    assert found == job
    write_job(found, second)
    write_job(read_job(second), first)
    assert first.read_bytes() == second.read_bytes()
