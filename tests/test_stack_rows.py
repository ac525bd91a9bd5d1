"""Rows of PyTorch-native stacks: every one is a question that a user could ask."""

from __future__ import annotations

import numpy as np
import pytest

from advisor import data
from advisor.lab.data import STACKS
from advisor.lab.fit.asked import AskedRun, columns_of, is_possible
from advisor.lab.fit.layout_rows import known_part
from advisor.lab.fit.layouts import read_all, usable
from advisor.lab.fit.stacks import LIMITED, stacks_read
from advisor.planners.core.setup import read_stack


@pytest.fixture(scope="module")
def runs() -> list[AskedRun]:
    return stacks_read(data.measurements(None))[0]


def test_every_row_names_its_source_and_a_licence_that_lets_it_ship() -> None:
    for name in STACKS.tables:
        rows = STACKS.read(name, data.measurements(None))
        assert set(rows.licence) <= {"MIT", "BSD-3-Clause"}
        assert rows.row.is_unique
        assert rows[["source", "path", "commit", "kind"]].notna().all(axis=None)


def test_every_row_is_asked_or_counted(runs: list[AskedRun]) -> None:
    asked, left_out = stacks_read(data.measurements(None))
    whole = sum(len(STACKS.read(name, data.measurements(None))) for name in STACKS.tables)
    assert len(asked) + left_out == whole
    assert len({run.row_id for run in runs}) == len(runs)


def test_a_row_is_of_a_known_card_and_release_and_no_faster_than_its_sheet(
    runs: list[AskedRun],
) -> None:
    for run in runs:
        stack, _ = read_stack(run.stack)
        assert run.setup.stack == stack
        assert known_part(run.gpu) is not None
        assert run.measured_s > 0
        # Whole micro-batches on every rank.
        share = run.layout.devices * run.layout.micro_batch
        assert run.layout.global_batch % share == 0
        if run.precision == "bf16":
            assert is_possible(run)


def test_boards_under_a_limit_that_nobody_states_bend_no_constant(runs: list[AskedRun]) -> None:
    rows = columns_of(runs)
    assert (rows.table == LIMITED).any()
    assert not (usable(rows).table == LIMITED).any()
    fitted = usable(read_all(data.measurements(None)))
    assert {"torchao", "nanochat", "nvfp4", "primus"} <= set(fitted.table)
    assert np.isfinite(fitted.measured_s).all()
