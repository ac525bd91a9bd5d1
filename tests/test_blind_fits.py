"""``--blind`` on published rows: what a group's rows measured changes none of its answers.

Every protocol that fits constants again is asked twice for a group: as published, and with all
that is known of the group, in every table that a constant is fitted on and in the questions
themselves, three times as slow. "The same" is bit for bit. Tables are thinned: the law holds of
any, and fits of a few rows take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from everywhere import replace_everywhere

from advisor import data
from advisor.lab import score
from advisor.lab.data.campaigns import Campaign
from advisor.lab.data.recorded import RecordedStep
from advisor.lab.fit import described, without
from advisor.lab.fit.asked import AskedRun
from advisor.lab.fit.campaigns import CampaignColumns
from advisor.lab.fit.described_columns import MeasuredStep
from advisor.lab.fit.layout_rows import LayoutRows
from advisor.lab.fit.memory import MemoryRows
from advisor.lab.fit.without import FittedTables, Hidden, in_parts
from advisor.lab.score.blind import Refit
from advisor.lab.score.cells import CellTable, device_names
from advisor.lab.score.harness import Answers, Questions

SLOWER = 3.0
OF_A_GROUP = 3  # rows that are asked
OF_A_TABLE = 3  # rows of a table of layouts that stay
EVERY = 27  # of so many steps of a suite one stays
QUICK = ("gpu-mlperf", "instance", "layers", "layouts", "neusight", "typed")
OTHERS = ("blackwell", "campaigns", "described", "finetune", "job", "recorded", "stacks")


def tables(known: FittedTables, spoil: Callable[[Any], Any] = lambda one: one) -> FittedTables:
    """Return thinned tables, perhaps spoilt."""
    found = FittedTables(folder=known.folder)
    steps = [s for i, s in enumerate(known.steps) if i % EVERY == 0 or s.suite == "neusight"]
    keep = np.concatenate(
        [np.flatnonzero(known.layouts.table == t)[:OF_A_TABLE] for t in set(known.layouts.table)]
    )
    found.__dict__.update(
        steps=spoil(steps),
        processors=known.processors,
        layouts=spoil(known.layouts.take(np.sort(keep))),
        memory=spoil(known.memory),
    )
    return found


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The published steps are the same for every protocol, and nobody changes them in place."""
    with pytest.MonkeyPatch.context() as patch:
        replace_everywhere(patch, described, "known_steps", cache(described.known_steps))
        yield


@pytest.fixture(scope="module")
def published() -> FittedTables:
    return FittedTables(folder=data.measurements(None))


def spoilt(one: Any, hidden: Hidden, family: str = "") -> Any:
    """Return the same with everything that a group measured ``SLOWER``."""
    match one:
        case MeasuredStep():
            return replace(one, seconds=one.seconds * (SLOWER if hidden.hides(one) else 1.0))
        case RecordedStep():
            is_out = one.device.name in hidden.devices
            return replace(one, seconds=one.seconds * (SLOWER if is_out else 1.0))
        case AskedRun():
            is_out = one.model in hidden.models or one.table in hidden.tables
            return replace(one, measured_s=one.measured_s * (SLOWER if is_out else 1.0))
        case Campaign():
            return replace(one, device_h=one.device_h * (SLOWER if one.family == family else 1.0))
        case CampaignColumns():
            factor = np.where(one.family == family, SLOWER, 1.0)
            return replace(one, published_h=one.published_h * factor)
        case LayoutRows():
            factor = np.where(hidden.hides_layouts(one), SLOWER, 1.0)
            return replace(one, measured_s=one.measured_s * factor)
        case MemoryRows():
            factor = np.where(hidden.hides_layouts(one.rows), SLOWER, 1.0)
            return replace(one, measured_bytes=one.measured_bytes * factor)
        case CellTable():
            names = [device_names(one.frame["gpu"].iloc[[i]])[0] for i in range(len(one.frame))]
            cells_out = np.isin(names, sorted(hidden.devices))
            if family:  # a user who knows other families' runs on the device tells them
                cells_out &= (one.frame["family"] == family).to_numpy()
            factor = np.where(cells_out, SLOWER, 1.0)
            frame = one.frame.assign(throughput=one.frame["throughput"] / factor)
            cells = replace(one.cells, log_throughput=one.cells.log_throughput - np.log(factor))
            return replace(one, frame=frame, cells=cells)
        case list() | tuple():
            return type(one)(spoilt(part, hidden, family) for part in one)
    if is_dataclass(one) and not isinstance(one, type):
        parts = {f.name: spoilt(getattr(one, f.name), hidden, family) for f in fields(one)}
        changed = {n: p for n, p in parts.items() if p is not getattr(one, n)}
        return replace(one, **changed) if changed else one
    return one


def group_of(rows: Questions, refit: Refit, known: FittedTables) -> tuple[Hidden, np.ndarray]:
    """Return the first group that hides a row of a fitted table, and a few of its rows."""
    hidden = refit.hidden(rows)
    for one in dict.fromkeys(hidden):
        out = known.layouts.take(known.layouts.measured_s > 0)
        if any(one.hides(step) for step in known.steps) or one.hides_layouts(out).any():
            here = [i for i, other in enumerate(hidden) if other == one]
            return one, np.array(here[:: max(len(here) // OF_A_GROUP, 1)][:OF_A_GROUP])
    raise AssertionError("no group is in a fitted table: nothing to fit again")


def families_of(name: str, rows: Questions) -> list[str]:
    """Return what is left out together besides, where a group is more than rows of tables."""
    if name == "campaigns":
        return [str(family) for family in rows.facts.rows.family]
    return rows.facts.frame["family"].tolist() if name == "job" else [""] * rows.truth.size


def values(answers: Answers) -> np.ndarray:
    assert answers.low is not None
    assert answers.high is not None
    return np.array([answers.value, answers.low, answers.high])


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_what_a_group_measured_changes_none_of_its_answers(
    name: str, published: FittedTables
) -> None:
    protocol = score.load(name)
    refit, rows = protocol.blind, protocol.rows(published.folder)
    assert isinstance(refit, Refit)
    thin = tables(published)
    hidden, here = group_of(rows, refit, thin)
    families = families_of(name, rows)
    family, here = families[here[0]], here[[families[i] == families[here[0]] for i in here]]
    worse = tables(published, lambda one: spoilt(one, hidden, family))
    facts = spoilt(rows.facts, hidden, family)
    slower = replace(rows, truth=SLOWER * rows.truth, facts=facts)
    before = refit.ask(rows, here, thin.without(hidden))
    after = refit.ask(slower, here, worse.without(hidden))
    assert np.isfinite(before.value).any()
    assert np.array_equal(values(before), values(after), equal_nan=True)


@pytest.mark.parametrize(
    ("hidden", "changed"),
    [
        (Hidden(devices=frozenset(["RTX-A6000"])), {without.DEVICE_MODEL, without.CALLS}),
        (Hidden(models=frozenset(["llama_7b"])), {without.DEVICE_MODEL, without.CALLS}),
        (Hidden(tables=frozenset(["torchtitan"])), {without.LAYOUT_MODEL, without.MEMORY}),
        (Hidden(), set()),
    ],
)
def test_what_has_a_hidden_row_and_nothing_else_is_fitted_again(
    hidden: Hidden, changed: set[str], published: FittedTables
) -> None:
    thin = tables(published)
    shipped, found = thin.without(Hidden()), thin.without(hidden)
    assert set(found.changed) == changed
    is_new = {
        without.DEVICE_MODEL: found.constants.device != shipped.constants.device,
        without.LAYOUT_MODEL: found.constants.layout is not shipped.constants.layout,
        without.MEMORY: found.constants.memory != shipped.constants.memory,
    }
    assert {name for name, new in is_new.items() if new} == changed - {without.CALLS}


def test_the_same_fits_see_what_they_may_see(published: FittedTables) -> None:
    """The law above is none of fits that look at nothing: other rows spoilt, constants move."""
    other = Hidden(devices=frozenset(["T4", "A100-SXM4-80GB"]), tables=frozenset(["vtrain_multi"]))
    hidden = Hidden(devices=frozenset(["RTX-A6000"]), tables=frozenset(["torchtitan"]))
    right = tables(published).without(hidden)
    wrong = tables(published, lambda one: spoilt(one, other)).without(hidden)
    assert right.call_s != wrong.call_s
    a, b = right.constants, wrong.constants
    assert a.device.dispatch_s != b.device.dispatch_s or a.device.log_sd != b.device.log_sd
    assert a.layout.parameters != b.layout.parameters
    assert a.memory != b.memory


def test_every_protocol_that_fits_again_is_tried() -> None:
    """But for ``gpu``, whose rows do not ship and are asked as those of ``gpu-mlperf``."""
    fits = {name for name in score.PROTOCOLS if isinstance(score.load(name).blind, Refit)}
    assert fits == {*QUICK, *OTHERS, "gpu"}


def test_whole_names_are_hidden_together() -> None:
    found: Mapping[str, frozenset[str]] = in_parts(list("abcdefg"), 3)
    assert all(name in part for name, part in found.items())
    assert sorted("".join(sorted(part)) for part in set(found.values())) == ["adg", "be", "cf"]
