"""Rows of memory: where each is from, and what constants they give back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from advisor import data
from advisor.lab.data import MEMORY
from advisor.lab.fit.memory import SPREADS, MemoryRows, fit_constants, read_memory, widths
from advisor.planners.core.errors import GIB
from advisor.planners.memory import UNSEEN, WIDTHS, MemoryConstants, without_terms
from advisor.quantities import REACH_90


@pytest.fixture(scope="module")
def known() -> MemoryRows:
    return read_memory(data.root("datasets"))


@pytest.mark.parametrize("table", ["runs", "collected"])
def test_every_row_says_where_it_is_from_and_what_was_read(table: str) -> None:
    rows = MEMORY.read(table, data.root("datasets"))
    assert rows.row_id.is_unique
    assert (
        rows[["source", "path", "commit", "licence", "model", "definition"]].notna().all(axis=None)
    )
    measured = rows[rows.is_measured == 1]
    assert set(measured.verdict) <= {"ran", "oom"}
    assert set(measured.definition) <= {*UNSEEN}
    assert measured[measured.verdict == "oom"].memory_gib.isna().all()
    assert (measured.memory_gib.dropna() > 0).all()
    assert not set(rows[rows.is_measured == 0].definition) & {*UNSEEN}


def test_estimates_are_never_rows_and_failures_are_many(known: MemoryRows) -> None:
    runs = MEMORY.read("runs", data.root("datasets"))
    estimates = set(runs[runs.is_measured == 0].row_id)
    assert estimates
    assert not estimates & set(known.rows.row_id)
    assert known.is_out_of_memory.sum() >= 40
    assert not (known.is_out_of_memory & known.is_reading).any()


def test_what_reads_more_is_told_more(known: MemoryRows) -> None:
    terms = known.terms(MemoryConstants())
    allocated, reserved, monitor = (
        without_terms(terms, UNSEEN[of]) for of in ("allocated", "reserved", "monitor")
    )
    assert (allocated <= reserved).all()
    assert (reserved < monitor).all()


def test_readings_made_by_constants_give_them_back(known: MemoryRows) -> None:
    """Where every source agrees, the priors hardly count."""
    made = replace(
        fit_constants(known, known.is_reading), context_bytes=2.6 * GIB, slack=1.2,
        alone_context_bytes=1.5 * GIB,
    )  # fmt: skip
    agreed = replace(known, measured_bytes=known.read(known.terms(made)))
    found = fit_constants(agreed, agreed.is_reading)
    for name in ("context_bytes", "alone_context_bytes", "slack"):
        assert getattr(found, name) == pytest.approx(getattr(made, name), rel=0.04)


def test_widths_cover_nine_tenths_of_sources_that_were_left_out(known: MemoryRows) -> None:
    """Of each kind of software, sources weighing the same, as far as few sources draw them."""
    wide = widths(known, known.is_reading)
    assert set(wide) == {*WIDTHS, *SPREADS}
    assert all(wide[name] >= 1 for name in SPREADS)
    inside, sources = np.zeros(len(known.rows), bool), known.rows.table
    for source in np.unique(sources[known.is_reading]):
        out = sources == source
        fitted: Any = fit_constants(known, known.is_reading & ~out)
        told = replace(fitted, **wide)
        terms = known.terms(told)
        value = known.read(terms)
        half = REACH_90 * known.deviation(terms, told) / value
        inside[out] = (np.abs(np.log(known.measured_bytes / value)) <= half)[out]
    for kind in (known.is_loose & known.is_named, known.is_loose, ~known.is_loose):
        among = kind & known.is_reading
        covered = [inside[among & (sources == s)].mean() for s in np.unique(sources[among])]
        assert 0.85 <= np.mean(covered) <= 0.98, kind.sum()
