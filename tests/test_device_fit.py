"""The fit of the step-time equation: it is the shipped equation, and it finds what is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from advisor import data
from advisor.lab.data import GAVEL, LAMBDA, MLPERF, NVIDIA_EXAMPLES, PROFET
from advisor.lab.fit.described import (
    WAYS,
    fitted_correlations,
    fitted_spreads,
    known_steps,
    left_out_fits,
    read_steps,
    residuals_of,
)
from advisor.lab.fit.described_columns import DescribedRows, columns
from advisor.lab.fit.device import (
    processor_log_sd,
    processor_residuals,
    processor_rows,
    residual_table,
    update,
)
from advisor.lab.fit.efficiencies import PRIORS, Fitted, StepModel
from advisor.machines import devices
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.device import step_time

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
    return columns(read_steps(_suite(tmp_path_factory.mktemp("suite"), cells)))


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


def test_what_a_moved_constant_leaves_alone_is_kept_and_nothing_else() -> None:
    """Kinds, phases, recorded scripts: bit for bit what the whole equation gives anew."""
    model = StepModel(columns(known_steps(data.measurements())[::12]))
    base = model._mean + 0.1 * np.random.default_rng(0).standard_normal(model._mean.size)
    near, moves = model._pieces(base), 0
    for i in range(base.size):
        moved = base.copy()
        moved[i] += 0.01
        whole = model._log_s(moved)
        assert np.array_equal(model._log_s(moved, near), whole), i
        moves += not np.array_equal(whole, near["log_s"][1])
    assert moves > len(PRIORS)  # of constants and deviations: they are in these rows


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
    from advisor.lab import score

    rng = np.random.default_rng(1)
    cells = {
        (gpu, p): 0.1 * float(np.exp(0.1 * rng.standard_normal()))
        for gpu in GPUS
        for p in ("fp16", "fp32")
    }
    models = ("bert_base_squad", "bert_large_squad")
    found = score.run("described", _suite(tmp_path, cells, models))
    assert found.overall.rows == 2 * len(cells)
    assert {g.group for g in found.groups} == {"lambda bert fp16", "lambda bert fp32"}
    assert set(found.baselines) >= {"constant MFU", "plain roofline"}
    assert found.overall.coverage is not None
    assert found.overall.width is not None
    assert found.overall.width > 0


def test_correlations_are_found_again_in_made_up_errors(rows: DescribedRows) -> None:
    """Errors of a job are j + g with known variances; families share a part of g."""
    rng = np.random.default_rng(3)
    devices_, families, jobs = 12, 3, 400
    shared_job, shared_family, own = 0.5, 0.3, 0.2
    label = [(m, d) for m in range(jobs) for d in range(devices_)]
    job = rng.normal(0, np.sqrt(shared_job), jobs)
    family = rng.normal(0, np.sqrt(shared_family), (jobs, families))
    error = np.array(
        [job[m] + family[m, d % families] + rng.normal(0, np.sqrt(own)) for m, d in label]
    )
    made = SimpleNamespace(
        suite=np.full(len(label), "made"), model=np.array([f"m{m}" for m, _ in label]),
        is_half=np.zeros(len(label), bool), device=np.array([f"d{d}" for _, d in label]),
        architecture=np.array([f"a{d % families}" for _, d in label]),
    )  # fmt: skip
    found = fitted_correlations(made, error)  # type: ignore[arg-type]
    assert found["same_kind"] == pytest.approx(0.5, abs=0.08)
    assert found["same_architecture"] == pytest.approx(0.8, abs=0.08)
    assert found["same_architecture"] < found["same_device"] < 1.0


def test_a_processors_width_is_what_its_errors_are_wider_than_a_gpus() -> None:
    errors = np.array([0.5, -0.5, 0.3, -0.3])
    width = processor_log_sd(errors, 0.2)
    assert width == pytest.approx(np.sqrt(np.mean(errors**2) - 0.04))
    assert processor_log_sd(errors, 2.0) == 0.0
    assert processor_log_sd(np.empty(0), 0.2) is None


def test_a_processors_error_is_that_of_its_published_throughput(tmp_path: Path) -> None:
    """A throughput (synthetic) twice as high is an error larger by ln 2; GPUs are passed over."""
    path = tmp_path / MLPERF.tables["entries"].published
    path.parent.mkdir(parents=True)
    entry = {"benchmark": "resnet", "global_batch_size": 32.0, "samples_per_s": 100.0,
             "round": "v1", "org": "o", "accelerator": "none", "n_accelerators": 0}  # fmt: skip
    pd.DataFrame([{"system": "skx_8180_2s_1x", **entry}, {"system": "a GPU", **entry}]).to_csv(
        path, index=False
    )
    cells = processor_rows(tmp_path)
    assert list(cells["system"]) == ["skx_8180_2s_1x"]
    parameters = devices.device_parameters()
    one = processor_residuals(cells, parameters)
    twice = processor_residuals(cells.assign(samples_per_s=200.0), parameters)
    np.testing.assert_allclose(twice - one, np.log(2))
    assert processor_rows(tmp_path / "nothing").empty


def test_networks_of_images_are_read_at_their_batch_and_size(tmp_path: Path) -> None:
    """A made-up step of each suite (synthetic) comes back with its device, batch and seconds."""
    frames = (
        (GAVEL, [{"gpu": "k80", "n_gpus": 1, "job": "ResNet-50 (batch size 64)",
                 "batch_size_per_gpu": 64.0, "samples_per_s": 32.0}]),
        (PROFET, [{"instance_name": "p2.xlarge", "model": "VGG16", "dataset": f"{side}dataset",
                  "batchsize": 16, "batch_latency": 0.5} for side in (32, 224)]),
        (NVIDIA_EXAMPLES, [
                 {"file": "PyTorch/Classification/ConvNets/resnet50v1.5/README.md",
                  "n_gpus": 1.0, "gpu": "V100", "seq_len": "", "metric": "images/s",
                  "gpu_mem_gb": 16.0, "precision": p, "value": 128.0,
                  "batch": "128 (FP32) / 256 (AMP)"} for p in ("fp32", "mixed")]),
    )  # fmt: skip
    for dataset, made in frames:
        place = next(iter(dataset.tables.values())).published
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(made).to_csv(tmp_path / place, index=False)
    steps = {(s.suite, s.is_half): s for s in read_steps(tmp_path)}
    assert {k: (s.device.name, s.work.micro_batch, s.seconds) for k, s in steps.items()} == {
        ("gavel", False): ("K80", 64, 2.0),
        ("profet", False): ("K80", 16, 0.5),
        ("nvidia", False): ("V100-SXM2-16GB", 128, 1.0),
        ("nvidia", True): ("V100-SXM2-16GB", 256, 2.0),
    }
    # VGG-16 in 224 pixels: 15.5 G multiply-adds an image forward (Simonyan and Zisserman).
    forward = sum(o.flop for o in steps["profet", False].operators if o.phase == "forward")
    assert forward / 16 == pytest.approx(2 * 15.5e9, rel=0.02)
