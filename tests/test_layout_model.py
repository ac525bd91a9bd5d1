from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advisor import data
from advisor.errors import ModelError
from advisor.estimate.knowledge.layout_model import (
    LayoutModel,
    TableErrors,
    load,
    student_quantile,
)
from advisor.lab.fit.layout_rows import LayoutRows, read
from advisor.lab.fit.layouts import fit, predicted_s, text, train, usable
from advisor.lab.score import layouts as protocol
from advisor.lab.score import run
from advisor.planners.core.layout_case import LayoutParameters

COLUMNS = (
    "row_id", "table", "model", "arch", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn",
    "vocab", "seq", "gbs", "mbs", "tp", "pp", "dp", "cp", "ep", "vpp", "zero_stage",
    "seq_parallel", "recompute", "precision", "gpu_type", "n_gpus", "gpus_per_node", "hetero",
    "intra_link", "inter_gbps_per_gpu", "framework", "iter_time_s", "status", "quality", "notes",
)  # fmt: skip
# Constants other than the priors: what a fit must find again.
MEGATRONS = ("megatron_jan2021", "megatron_sc21", "megatron_seqsel", "vtrain_multi")
TRUTH = LayoutParameters(gemm_efficiency=0.82, tp_efficiency=0.66, launch_heavy_s=1.2e-3)


def written(path: Path, noise: float = 0.0) -> Path:
    """Write a table of made-up runs whose times the model itself gives under ``TRUTH``."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    for table in ("first", "second", "third"):
        for tp, pp, dp, mbs, hidden in [
            (1, 1, 8, 1, 1024), (2, 1, 4, 4, 2048), (4, 1, 2, 2, 4096), (8, 1, 1, 8, 6144),
            (1, 2, 4, 2, 2048), (2, 2, 2, 1, 1024), (4, 2, 2, 4, 4096), (8, 2, 1, 2, 8192),
        ]:  # fmt: skip
            rows.append(_row(len(rows), table, tp, pp, dp, mbs, hidden))
    _write(path, rows)
    times = predicted_s(read(path), TRUTH)
    for row, seconds in zip(rows, times, strict=True):
        row["iter_time_s"] = float(seconds * math.exp(noise * rng.standard_normal()))
    _write(path, rows)
    return path


def _row(i: int, table: str, tp: int, pp: int, dp: int, mbs: int, hidden: int) -> dict[str, Any]:
    return {
        "row_id": f"{table}-{i}", "table": table, "model": f"gpt-{hidden}", "arch": "gpt",
        "layers": 24, "hidden": hidden, "heads": hidden // 128, "vocab": 51200, "seq": 2048,
        "gbs": 64, "mbs": mbs, "tp": tp, "pp": pp, "dp": dp, "recompute": "full",
        "precision": "fp16", "gpu_type": "A100-80GB", "n_gpus": tp * pp * dp, "gpus_per_node": 8,
        "hetero": 0, "inter_gbps_per_gpu": 100, "framework": "Megatron-DeepSpeed",
        "iter_time_s": 1.0, "status": "ok", "quality": "good", "zero_stage": 1,
    }  # fmt: skip


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def rows(tmp_path: Path) -> LayoutRows:
    return read(written(tmp_path / "planners" / "measured_layouts.csv"))


def test_a_fit_finds_the_constants_that_made_the_runs(rows: LayoutRows) -> None:
    found = fit(rows)
    before = np.abs(np.log(predicted_s(rows, LayoutParameters()) / rows.measured_s)).mean()
    after = np.abs(np.log(predicted_s(rows, found) / rows.measured_s)).mean()
    assert after < 0.25 * before
    assert abs(math.log(found.gemm_efficiency / 0.82)) < abs(math.log(0.9 / 0.82))


def test_a_left_out_table_is_predicted_by_constants_that_never_saw_it(rows: LayoutRows) -> None:
    model = train(rows, version="test")
    assert set(model.folds) == {"first", "second", "third"}
    alone = fit(usable(rows).take(rows.table != "second"))
    assert model.without("second") == alone
    assert model.without("never seen") == model.parameters


def test_a_model_is_what_it_was_written_as(rows: LayoutRows, tmp_path: Path) -> None:
    model = train(rows, version="test")
    (tmp_path / "m.json").write_text(text(model))
    again = load(tmp_path / "m.json")
    assert again.version == "test"
    assert again.errors == model.errors
    assert predicted_s(rows, again.parameters) == pytest.approx(
        predicted_s(rows, model.parameters), rel=1e-4
    )


@pytest.mark.parametrize("damaged", ["", "{}", '{"schema_version": 9}', "[1]"])
def test_a_damaged_model_is_refused(tmp_path: Path, damaged: str) -> None:
    file = tmp_path / "parameters.json"
    file.write_text(damaged)
    with pytest.raises(ModelError, match="cannot use"):
        load(file)


def test_intervals_weigh_tables_equally_and_leave_their_own_out() -> None:
    errors = (
        TableErrors(table="large", generation="ampere", log_errors=(0.1,) * 50),
        TableErrors(table="a", generation="ampere", log_errors=(0.2,)),
        TableErrors(table="b", generation="ampere", log_errors=(0.3,)),
        TableErrors(table="c", generation="hopper", log_errors=(0.4,)),
    )
    model = LayoutModel(version="", parameters=LayoutParameters(), folds={}, errors=errors)
    # Student's 95 % quantile with two degrees of freedom is 2.92; a new table adds its own draw.
    mean = (0.1**2 + 0.2**2 + 0.3**2) / 3
    expected = 2.92 * math.sqrt(mean * (1 + 1 / 3))
    assert model.log_half_width(1, 0.9) == pytest.approx(expected, rel=0.02)
    # With two tables left, every generation's are taken; where nothing is known of a generation,
    # they count as two.
    mean = (0.1**2 + 0.2**2 + 0.4**2) / 3
    for generation, tables in ((1, 3), (3, 2)):
        expected = 2.92 * math.sqrt(mean * (1 + 1 / tables))
        found = model.log_half_width(generation, 0.9, without="b")
        assert found == pytest.approx(expected, rel=0.02)
    assert model.log_half_width(1, 0.9, without="b") != model.log_half_width(1, 0.9)


def test_one_table_of_a_generation_that_errs_much_widens_its_interval() -> None:
    others = tuple(
        TableErrors(table=str(i), generation="hopper", log_errors=(0.1,)) for i in range(8)
    )
    own = TableErrors(table="own", generation="volta", log_errors=(0.3,))
    model = LayoutModel(version="", parameters=LayoutParameters(), folds={}, errors=(*others, own))
    good = TableErrors(table="own", generation="volta", log_errors=(0.01,))
    tame = LayoutModel(version="", parameters=LayoutParameters(), folds={}, errors=(*others, good))
    assert model.log_half_width(0) > 0.3 * 1.645  # as wide as the one table's own error says
    # Nothing is gained by one that errs little: it is one table of nine.
    assert tame.log_half_width(0) == tame.log_half_width(3)


@given(st.integers(3, 30), st.floats(0.5, 0.95))
def test_fewer_tables_make_wider_intervals(tables: int, coverage: float) -> None:
    def width(count: int) -> float:
        errors = tuple(
            TableErrors(table=str(i), generation="ampere", log_errors=(0.1,)) for i in range(count)
        )
        model = LayoutModel(version="", parameters=LayoutParameters(), folds={}, errors=errors)
        return model.log_half_width(1, coverage)

    assert width(tables) > width(tables + 1)


BOX: dict[str, Any] = {
    "chip": "H100-SXM5", "precision": 1, "stack": "nemo", "hidden": 8192.0, "devices": 64,
}  # fmt: skip
HOPPER = 2


def test_nothing_is_outside_where_it_was_measured() -> None:
    assert load().outside(HOPPER, **BOX) == {}
    assert load().outside(HOPPER, **{**BOX, "stack": None}) == {}


@given(st.floats(1.01, 8.0), st.floats(1.01, 8.0))
def test_the_further_outside_the_wider(near: float, more: float) -> None:
    model = load()
    widest = max(e.widths[1] for e in model.errors if e.generation == "hopper")
    one, other = (
        model.outside(HOPPER, **{**BOX, "hidden": widest * f})["wide"] for f in (near, near * more)
    )
    assert 0 < one < other
    assert other - one == pytest.approx(math.log(more) * model.outside_log_sd["wide"])


def test_what_a_left_out_table_alone_measured_is_outside() -> None:
    model, foundry = load(), {**BOX, "stack": "llm-foundry", "precision": 0}
    assert model.outside(HOPPER, **foundry) == {}
    left_out = model.left_out("llm_foundry_mpt", "llm_foundry_mpt")
    assert "stack" in left_out.outside(HOPPER, **foundry)


def test_errors_that_distance_explains_do_not_widen_what_is_near() -> None:
    def width(distance: float) -> float:
        errors = tuple(
            TableErrors(table=str(i), generation="hopper", log_errors=(0.1, 0.1),
                        outside_log_sd=distance)
            for i in range(4)
        )  # fmt: skip
        model = LayoutModel(version="", parameters=TRUTH, folds={}, errors=errors)
        return model.log_half_width(HOPPER)

    assert width(0.08) == pytest.approx(0.6 * width(0.0))
    assert width(0.5) == pytest.approx(0.5 * width(0.0))  # a quarter of the squares stays


def test_students_quantile_is_the_exact_one() -> None:
    for freedom in (2, 3, 5, 10, 100):
        for probability in (0.75, 0.9, 0.95):
            exact = stats.t.ppf(probability, freedom)
            assert student_quantile(probability, freedom) == pytest.approx(exact, rel=0.02)


def test_intervals_cover_new_sources_as_they_say() -> None:
    # Sources with a spread of their own, seen a few rows at a time: 90 % of a new one's rows.
    seed = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        rows = seed.normal(0, 0.1, (6, 1)) + seed.normal(0, 0.05, (6, 20))
        errors = tuple(
            TableErrors(table=str(i), generation="ampere", log_errors=tuple(np.abs(r)))
            for i, r in enumerate(rows[:5])
        )
        model = LayoutModel(version="", parameters=LayoutParameters(), folds={}, errors=errors)
        inside.append(np.mean(np.abs(rows[5]) <= model.log_half_width(1, 0.9)))
    # A little more: rows of a source do not fail together alone.
    assert 0.88 < np.mean(inside) < 0.97


def test_the_packaged_model_loads_and_is_near_its_priors() -> None:
    model = load()
    priors = LayoutParameters()
    for name in priors.__slots__:
        ratio = getattr(model.parameters, name) / getattr(priors, name)
        assert 0.2 < ratio < 5, name
    assert len(model.folds) >= 10


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_no_rate_of_products_a_fifth_away_is_nearer_to_the_published_runs(factor: float) -> None:
    """Megatron's on A100, by three publishers: what ships as a constant is where they agree."""
    published = read(data.measurements(None))
    some = published.take(np.isin(published.table, MEGATRONS))
    assert len(some) > 50
    shipped = load().parameters
    moved = replace(shipped, gemm_efficiency=shipped.gemm_efficiency * factor)

    def off(told: LayoutParameters) -> float:
        error = np.abs(np.log(predicted_s(some, told) / some.measured_s))
        return float(np.mean([error[some.table == name].mean() for name in MEGATRONS]))

    assert off(shipped) < 0.8 * off(moved)


def test_what_a_table_does_not_state_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    row = _row(0, "t", 8, 8, 1, 1, 4096)
    row |= {"n_gpus": 32, "heads": "", "mbs": "", "gbs": 32}
    other = _row(1, "t", 1, 1, 8, 1, 4096) | {"heads": 16}
    _write(path, [row, other])
    rows = read(path)
    # 32 GPUs of tp 8 and dp 1 are 4 stages, whatever the table says; heads as its other rows.
    assert np.asarray(rows.layouts.pp)[0] == 4
    assert np.asarray(rows.shapes.heads)[0] == 16
    assert np.asarray(rows.layouts.micro_batch)[0] == 1


def test_rows_that_cannot_be_predicted_are_counted_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    good = _row(0, "t", 1, 1, 8, 1, 1024)
    bad = [
        _row(1, "t", 1, 1, 8, 1, 1024) | {"gpu_type": "Abacus"},
        _row(2, "t", 1, 1, 8, 1, 1024) | {"arch": "cnn"},
        _row(3, "t", 1, 1, 8, 1, 1024) | {"layers": ""},
    ]
    _write(path, [good, *bad])
    rows = read(path)
    assert len(rows) == 1
    assert rows.left_out == 3
    _write(path, bad)
    with pytest.raises(ModelError, match="no transformer run"):
        read(path)
    with pytest.raises(ModelError, match="cannot read"):
        read(tmp_path / "absent.csv")


def test_the_protocol_scores_any_table_of_the_same_form(tmp_path: Path) -> None:
    written(tmp_path / "planners" / "measured_layouts.csv", noise=0.02)
    found = run("layouts", tmp_path)
    assert found.overall.rows == 24
    assert {g.group for g in found.groups} == {"A100 first", "A100 second", "A100 third"}
    record = found.to_record()
    json.dumps(record)
    for how in ("plain", "told the stack", "told all that its table knows"):
        assert record["figures"][f"A100 {how}, mean of tables, MAPE"] < 0.5


def test_regret_is_the_chosen_layouts_time_over_the_best(rows: LayoutRows) -> None:
    same = LayoutRows(
        **{
            **{name: getattr(rows, name) for name in rows.__slots__},
            "measured_s": np.full(len(rows), 2.0),
        }
    ).take(np.array([0, 0]))
    two = LayoutRows(
        **{
            **{name: getattr(same, name) for name in same.__slots__},
            "measured_s": np.array([2.0, 3.0]),
        }
    )
    assert protocol.regrets(two, np.array([1.0, 2.0])) == [0.0]
    assert protocol.regrets(two, np.array([2.0, 1.0])) == [0.5]


@pytest.mark.slow
def test_published_tables_are_predicted_within_the_stated_errors() -> None:
    found = run("layouts", data.measurements(None))
    # The figures of lab/notes/planners.md with a fifth of room.
    told = "told all that its table knows"
    assert found.figures[f"A100 {told}, mean of tables, MAPE"] < 0.076
    assert found.figures[f"H100 {told}, pooled, MAPE"] < 0.075
    assert found.figures[f"V100 {told}, mean of tables, MAPE"] < 0.175
    assert found.figures["A100 told the stack, mean of tables, MAPE"] < 0.085
    # Plain questions interleave no stages that nobody asked to.
    assert found.figures["A100 plain, mean of tables, MAPE"] < 0.165
    assert found.figures["plain, 90% interval, coverage"] == pytest.approx(0.9, abs=0.03)
    assert (
        found.overall.mape_fraction
        < found.baselines["constant hardware-FLOP efficiency"].mape_fraction
    )
