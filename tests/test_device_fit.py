"""The fit of the step-time equation: it is the shipped equation, and it finds what is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from advisor import data
from advisor.machines import devices
from advisor.measurements import LAMBDA
from advisor.planners.core.nouns import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.device import step_time
from advisor.train.described_columns import DescribedRows
from advisor.train.described_residuals import (
    WAYS,
    fitted_spreads,
    left_out_fits,
    residuals_of,
)
from advisor.train.described_rows import read_described
from advisor.train.device_fit import residual_table, update
from advisor.train.efficiencies import PRIORS, Fitted, StepModel

GPUS = ("RTX-3070", "RTX-3080", "RTX-2080Ti", "V100-16GB", "A100-PCIe-40GB", "RTX-A5500")


def _suite(
    folder: Path,
    seconds: dict[tuple[str, str], float],
    models: tuple[str, ...] = ("bert_base_squad",),
) -> Path:
    """Write made-up throughputs (synthetic) in the form of Lambda's suite."""
    rows = [
        {"system": gpu, "n_gpus": 1.0, "model": model, "precision": precision,
         "throughput": 8 / value, "batch_per_gpu": 8.0, "gpu": gpu}
        for (gpu, precision), value in seconds.items()
        for model in models
    ]  # fmt: skip
    path = folder / LAMBDA.tables["throughputs"].published
    path.parent.mkdir(parents=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> DescribedRows:
    cells = {(gpu, p): 0.1 for gpu in GPUS for p in ("fp16", "fp32")}
    return read_described(_suite(tmp_path_factory.mktemp("suite"), cells))


def _constants() -> Fitted:
    """Constants unlike the priors, no deviations."""
    values = np.array([median for median, _ in PRIORS.values()])
    values = values * np.exp(np.linspace(-0.2, 0.2, values.size))
    return Fitted(
        constants=dict(zip(PRIORS, values.tolist(), strict=True)), parameters=np.log(values)
    )


def _padded(model: StepModel, fitted: Fitted) -> Fitted:
    size = 2 * sum(model._sizes)
    return replace(fitted, parameters=np.r_[fitted.parameters, np.zeros(size)])


def test_what_is_fitted_is_what_the_planner_evaluates(rows: DescribedRows, tmp_path: Path) -> None:
    """Same constants, same steps: the fit's columns and ``step_time`` are one equation."""
    model = StepModel(rows)
    fitted = _padded(model, _constants())
    ours = dict(zip(zip(rows.device, rows.is_half, strict=True), model.log_s(fitted), strict=True))
    packaged = data.root("trained_models") / "device_model" / "parameters.json"
    record = json.loads(packaged.read_text())
    spreads = dict.fromkeys(
        ("log_sd", "unmeasured_rate_log_sd", "unseen_architecture_log_sd", "unseen_kind_log_sd"),
        0.1,
    )
    update(record, fitted.constants, spreads, rows)
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps(record))
    parameters = devices.device_parameters(path)
    bert = Transformer(
        layers=12, hidden=768, heads=12, sequence=384, vocabulary=30522, is_causal=False,
        has_flash_attention=False, has_head=False,
    )  # fmt: skip
    for (name, is_half), log_s in ours.items():
        device = replace(
            devices.accelerator_devices()[str(name)],
            sustained_fp32_flop_per_s=None, sustained_fp16_flop_per_s=None,
        )  # fmt: skip
        precision = "fp16" if is_half else ("tf32" if device.tf32_flop_per_s else "fp32")
        work = transformer_work(bert, micro_batch=8, precision="fp16" if is_half else "fp32")
        work = replace(work, precision=precision)  # type: ignore[arg-type]
        found = step_time(work, [device], [8], parameters)
        total = found.micro_batch_s[0, 0] + found.optimizer_s[0]
        assert np.log(total) == pytest.approx(log_s, abs=5e-3), name  # constants are rounded


def test_the_fit_recovers_times_that_obey_the_equation(rows: DescribedRows) -> None:
    model = StepModel(rows)
    truth = model.log_s(_padded(model, _constants()))
    told = replace(rows, log_s=truth)
    model = StepModel(told)
    fitted = model.fit(np.ones(truth.size, bool))
    # Twelve rows cannot tell fifteen constants apart, but they tell the times.
    assert np.max(np.abs(model.log_s(fitted) - truth)) < 0.05


def test_what_is_left_out_does_not_enter_its_own_prediction(rows: DescribedRows) -> None:
    """A device whose rows are absurd changes nothing of what is predicted for it."""
    model = StepModel(rows)
    out = rows.device == "RTX-3080"
    absurd = StepModel(replace(rows, log_s=np.where(out, rows.log_s + 5.0, rows.log_s)))
    honest = model.log_s(model.fit(~out))[out]
    np.testing.assert_allclose(absurd.log_s(absurd.fit(~out))[out], honest, rtol=1e-9)


def test_taking_rows_takes_their_operators(rows: DescribedRows) -> None:
    keep = rows.is_half
    few = rows.take(keep)
    assert few.log_s.size == keep.sum()
    total = np.bincount(rows.row, rows.flop)[keep]
    np.testing.assert_allclose(np.bincount(few.row, few.flop), total)


def test_spreads_are_of_the_size_of_the_errors_and_never_shrink_with_ignorance(
    rows: DescribedRows,
) -> None:
    rng = np.random.default_rng(0)
    big = {way: (1 + i) * 0.1 * rng.standard_normal(rows.log_s.size) for i, way in enumerate(WAYS)}
    many = replace(rows, family=np.full(rows.log_s.size, "resnet"))
    spreads = fitted_spreads(many, big)
    assert 0.03 < spreads["log_sd"] < 0.3
    assert all(value >= 0 for value in spreads.values())


def test_the_residual_table_names_every_way_and_device(rows: DescribedRows) -> None:
    fitted = StepModel(rows).fit(np.ones(rows.log_s.size, bool))
    residuals = residuals_of(rows, left_out_fits(rows, fitted))
    assert set(residuals) == set(WAYS)
    table = residual_table(rows, residuals)
    assert set(table[table.left_out == "device"].device) == set(rows.device)
    assert (table.rows > 0).all()
    assert np.isfinite(table.mape).all()


def test_described_jobs_are_scored_with_intervals_from_other_devices(tmp_path: Path) -> None:
    from advisor.validation import described

    rng = np.random.default_rng(1)
    cells = {
        (gpu, p): 0.1 * float(np.exp(0.1 * rng.standard_normal()))
        for gpu in GPUS
        for p in ("fp16", "fp32")
    }
    models = ("bert_base_squad", "bert_large_squad")
    found = described.run(_suite(tmp_path, cells, models))
    assert found.overall.rows == 2 * len(cells)
    assert {g.group for g in found.groups} == {"lambda bert fp16", "lambda bert fp32"}
    assert set(found.baselines) >= {"constant MFU", "plain roofline"}
    assert found.overall.coverage is not None
    assert found.overall.width is not None
    assert found.overall.width > 0
