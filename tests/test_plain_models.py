"""Models without physics on raw columns: what they may see, and what they must find."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.lab.score.harness import Answers, Protocol, Questions, evaluate
from advisor.lab.score.raw import PLAIN_MODELS, RawColumns

COUNT = 60
RNG = np.random.default_rng(0)
AMOUNTS = {"work": RNG.uniform(1, 100, COUNT), "rate": RNG.uniform(1, 10, COUNT)}
FOLDS = np.repeat(["a", "b", "c"], COUNT // 3)
TRUTH = 3.0 * AMOUNTS["work"] / AMOUNTS["rate"] ** 0.5


def raw(**more: object) -> RawColumns:
    return RawColumns.of(AMOUNTS, FOLDS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(PLAIN_MODELS))
def test_a_fold_is_answered_by_the_others_alone(name: str) -> None:
    everything = np.ones(COUNT, bool)
    before = raw().plain_models(TRUTH, everything)[name]
    other = np.where(FOLDS == "b", 1e3 * TRUTH, TRUTH)
    after = raw().plain_models(other, everything)[name]
    assert np.array_equal(before[FOLDS == "b"], after[FOLDS == "b"])
    assert not np.array_equal(before[FOLDS == "a"], after[FOLDS == "a"])


def test_an_additive_law_of_logarithms_is_found() -> None:
    found = raw().plain_models(TRUTH, np.ones(COUNT, bool))["additive model of logarithms"]
    assert np.quantile(np.abs(found / TRUTH - 1.0), 0.9) < 0.02  # ends of columns are held near


def test_rows_that_are_known_and_not_asked_are_heard() -> None:
    """Each asked row stands among the known ones, too: the nearest row is itself."""
    twice = {name: np.concatenate([a, a]) for name, a in AMOUNTS.items()}
    columns = RawColumns.of(twice, ["asked"] * (2 * COUNT), known=TRUTH)
    assert len(columns.x) == len(columns.fold) == COUNT
    found = columns.plain_models(TRUTH, np.ones(COUNT, bool))
    assert found["5 nearest rows"] == pytest.approx(TRUTH)
    alone = RawColumns.of(AMOUNTS, ["asked"] * COUNT).plain_models(TRUTH, np.ones(COUNT, bool))
    assert all(np.isnan(values).all() for values in alone.values())


def test_a_constant_column_says_nothing_far_from_what_is_known() -> None:
    lone = np.where(FOLDS == "a", 1e9, 1.0)
    columns = RawColumns.of({**AMOUNTS, "constant elsewhere": lone}, FOLDS)
    found = columns.plain_models(TRUTH, np.ones(COUNT, bool))["additive model of logarithms"]
    assert np.quantile(np.abs(found / TRUTH - 1.0), 0.9) < 0.05


def test_every_protocol_with_raw_columns_is_compared_with_them() -> None:
    rows = Questions(
        questions=["q"] * COUNT, truth=TRUTH, unseen=["u"] * COUNT, raw=raw(labels={"fold": FOLDS})
    )
    protocol = Protocol(
        name="p", description="d", rows=lambda _: rows, answer=lambda _: Answers(value=TRUTH)
    )
    found = evaluate(protocol, rows, Answers(value=1.1 * TRUTH))
    assert set(PLAIN_MODELS) <= set(found.baselines)
    with pytest.raises(ValueError, match="one a row"):
        Questions(questions=["q"], truth=TRUTH[:1], unseen=["u"], raw=raw())
