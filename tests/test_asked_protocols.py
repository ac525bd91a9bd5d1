"""Protocols job, series-mlperf and pipeline: what the product answers where runs are known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from advisor.errors import ModelError, UsageError
from advisor.estimate.case import constants
from advisor.estimate.knowledge.known import job_from_runs, measured_runs
from advisor.estimate.knowledge.own_runs import MeasuredLayout, own_layouts
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import STATUSES
from advisor.estimate.ways.model_parallel import OnMachine, on_machine
from advisor.jobs.describe import described_job
from advisor.jobs.runs import Actual
from advisor.lab import score
from advisor.lab.score import devices, scaling, transformers
from advisor.lab.score.asked import predictor
from advisor.lab.score.cells import cell_table
from advisor.lab.score.layouts import calibrated_problem
from advisor.lab.score.scaling import Pair, System
from advisor.machines.cluster import one_group
from advisor.machines.devices import accelerator_devices, device_parameters
from advisor.machines.fleet import lone_fleet, own_fleet
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.links.gradients import straggling
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.from_runs import MeasuredRun, work_from_runs

T4 = accelerator_devices()["T4"]
PARAMETERS = device_parameters()


def noted(count: int, step_s: float = 0.5, batch: int = 256) -> Actual:
    return Actual(run="j", provider="", instance_type="T4", count=count, step_s=step_s,
                  batch=batch)  # fmt: skip


def system(accelerators: int, batch: int, samples_per_s: float = 1000.0) -> System:
    return System(device=T4, accelerators=accelerators, batch=batch, samples_per_s=samples_per_s)


# Jobs that are known by runs on several devices -------------------------------------------------


@pytest.mark.parametrize("count", [2, 8, 64])
def test_a_run_on_several_devices_is_answered_as_it_was_measured(count: int) -> None:
    small = system(count, 32 * count)
    rate, log_sd = scaling.ask(Pair(benchmark="a", small=small, large=small))
    assert rate == pytest.approx(small.samples_per_s, rel=0.01)
    assert log_sd < 0.2


def test_more_devices_on_the_same_batch_each_are_no_slower_and_no_faster_than_linear() -> None:
    small = system(8, 256)
    rates, widths = np.array(
        [
            scaling.ask(Pair(benchmark="a", small=small, large=system(n, 32 * n)))
            for n in (8, 16, 64, 512)
        ]
    ).T
    growth = np.array([1, 2, 8, 64])
    assert (np.diff(rates) > 0).all()
    assert (rates <= 1.01 * small.samples_per_s * growth).all()
    assert (np.diff(widths) > 0).all()


def test_smaller_shares_of_a_batch_scale_worse() -> None:
    """What does not shrink with the share stays: eight times the devices on the same batch."""
    small = system(8, 256)
    same_batch, _ = scaling.ask(Pair(benchmark="a", small=small, large=system(64, 256)))
    same_share, _ = scaling.ask(Pair(benchmark="a", small=small, large=system(64, 2048)))
    assert small.samples_per_s < same_batch < 0.9 * same_share


def test_a_run_on_several_is_one_on_each_without_the_wait_for_the_slowest(
    asking: Predictor,
) -> None:
    (lone,) = measured_runs((noted(1, 0.5, 32),), asking.catalogue)
    (eight,) = measured_runs((noted(8, 0.5, 256),), asking.catalogue)
    assert (eight.batch, eight.workers, lone.workers) == (32, 8, 1)
    assert lone.step_s == 0.5
    assert eight.step_s * float(straggling(8, constants().scaling)) == pytest.approx(0.5)
    assert float(straggling(1, constants().scaling)) == 1.0


def test_runs_on_single_devices_say_nothing_of_several(asking: Predictor) -> None:
    known = asking.catalogue.accelerators.get("T4")
    for counts, status in (((1, 1), "runs_on_one_machine"), ((1, 8), "ok")):
        runs = tuple(noted(n, 0.5, 64 * n) for n in counts)
        found = asking.step_columns(
            job_from_runs(runs, asking.catalogue, PARAMETERS, name="j", precision="fp16"),
            np.array([0]), np.array([1]), fleet=lone_fleet(T4, 16, known),
        )  # fmt: skip
        assert STATUSES[int(found.status[0])] == status


def test_fewer_samples_than_devices_are_refused(asking: Predictor) -> None:
    with pytest.raises(UsageError, match="fewer samples"):
        job_from_runs(
            (noted(64, batch=32),), asking.catalogue, PARAMETERS, name="j", precision="fp16"
        )


def test_shares_of_a_batch_need_not_be_whole() -> None:
    runs = [MeasuredRun(device=T4, batch=b, step_s=0.1 * b, workers=3) for b in (2.5, 10.0)]
    assert work_from_runs(runs, PARAMETERS, precision="fp16").micro_batch == 6


def write_entries(folder: Path, *, sizes: tuple[int, ...] = (8, 16, 32)) -> None:
    """Series whose throughput grows by the power 0.95 of the size (synthetic)."""
    lines = ["round,org,benchmark,accelerator,n_accelerators,samples_per_s,global_batch_size"]
    for benchmark in ("a", "b"):
        lines += [
            f"v1,o,{benchmark},{card},{n},{100 * n**0.95},{32 * n}"
            for card in ("T4", "Ascend910")
            for n in sizes
        ]
    table = folder / "measurements" / "mlperf" / "mlperf_entries.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(lines) + "\n")


def test_series_are_asked_of_the_product(tmp_path: Path) -> None:
    write_entries(tmp_path)
    found = score.run("series-mlperf", tmp_path)
    assert found.overall.rows == 4  # nobody has specifications of an Ascend 910
    assert found.overall.mape_fraction < 0.06
    assert found.scores == "the product"
    assert found.baselines["one power of the size, other benchmarks'"].mape_fraction < 0.01


def test_one_device_is_no_smallest_system(tmp_path: Path) -> None:
    write_entries(tmp_path, sizes=(1, 8))
    with pytest.raises(ModelError, match="no series"):
        score.run("series-mlperf", tmp_path)


# Known jobs on a device left out ----------------------------------------------------------------


def rules_of(frame: pd.DataFrame) -> dict[str, Any]:
    rows = devices._rows(cell_table(frame))
    return {name: rule(rows, rows.every) for name, rule in devices.JOB.baselines.items()}


def test_a_cell_is_what_its_runs_took_and_simpler_rules_see_the_same_batch_alone() -> None:
    frame = pd.DataFrame([
        {"gpu": gpu, "precision": "fp32", "model": "x", "batch": batch, "count": 1,
         "throughput": rate * batch}
        for gpu, rate in (("T4", 1.0), ("V100-SXM2-16GB", 3.0), ("A10G", 2.0))
        for batch in (8.0, 64.0)
    ])  # fmt: skip
    rules = rules_of(frame.assign(family="made up: x"))
    assert np.isnan(rules["mean of the runs, each times the mean ratio of other jobs"]).all()
    assert rules["nearest run"][0] == pytest.approx(3.0 * 8)  # of the V100: nearer than the A10G
    assert rules["mean of the runs"][1] == pytest.approx(math.sqrt(6.0) * 64)
    assert np.isfinite(rules["log-linear in peak and bandwidth"]).all()


def test_a_rule_carries_the_ratio_of_jobs_of_other_families() -> None:
    """Those of its own family, and of another table, are not heard."""
    frame = pd.DataFrame([
        {"gpu": gpu, "precision": "fp32", "model": model, "batch": 8.0, "count": 1,
         "throughput": rate}
        for model, rates in (("x", (1.0, 9.0)), ("y", (2.0, 8.0)), ("z", (5.0, 1.0)))
        for gpu, rate in zip(("T4", "A10G"), rates, strict=True)
    ])  # fmt: skip
    rules = rules_of(frame.assign(family=np.repeat(["one: x", "one: y", "two: z"], 2)))
    carried = rules["mean of the runs, each times the mean ratio of other jobs"]
    assert carried[:4] == pytest.approx([9.0 / 4, 1.0 * 4, 8.0 / 9, 2.0 * 9])
    assert np.isnan(carried[4:]).all()


def test_jobs_without_either_collection_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither"):
        score.run("job", tmp_path)


# Pipelines after own runs -----------------------------------------------------------------------


def small_runs(slower: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Steps of BERT by the product itself, over a network so many times slower (synthetic)."""
    grid = [(d, p) for p in (2, 4, 8) for d in (1, 2, 4, 8) if d * p <= 32]
    frame = pd.DataFrame(
        [{"dp": d, "pp": p, "accelerators": d * p, "micro_batch": 8, "global_batch": 512,
          "step_s": 1.0} for d, p in grid]
    )  # fmt: skip
    on = bert()
    slow = replace(
        on.problem,
        machines=replace(
            on.problem.machines,
            network_bytes_per_s=on.problem.machines.network_bytes_per_s / slower,
        ),
    )
    frame["step_s"] = [
        float(slow.times(layout_columns(transformers.layout_of(run, on))).step_s)
        for run in frame.itertuples()
    ]
    few = frame.accelerators <= transformers.MOST_GPUS
    return frame[few], frame[~few]


def bert() -> OnMachine:
    asking = predictor()
    work = transformer_work(
        transformers.MODELS["bert"], micro_batch=1, precision="fp16", setup=transformers.SETUP
    )
    group = one_group(f"2x{transformers.MACHINE}", asking.catalogue)
    fleet, row = own_fleet(group, asking.fleet, per_node=1)
    case = asking.case(described_job(work, name="bert"), fleet=fleet)
    return on_machine(case, row)


def test_a_network_slower_than_sold_is_known_after_own_runs() -> None:
    """Through the kernel too, where what one stream carries bounds a ring."""
    few, many = small_runs(slower=1.5)
    before = transformers.asked("bert", few.iloc[:0], many)[:, 0] / many.step_s
    after = transformers.asked("bert", few, many)[:, 0] / many.step_s
    assert np.abs(before - 1).max() > 0.15
    assert np.abs(after - 1).max() < 0.05


def test_runs_that_are_far_off_are_met_and_not_passed() -> None:
    """The calibration is repeated where it went: a step is no straight line of a constant."""
    on = bert()
    few, _ = small_runs(slower=2.5)
    runs = [
        MeasuredLayout(
            problem=on.problem,
            layout=layout_columns(transformers.layout_of(run, on)),
            device=accelerator_devices()["V100-SXM2-16GB"],
            step_s=0.6 * step_s,
        )
        for run, step_s in zip(few.itertuples(), few.step_s.to_numpy(float), strict=True)
    ]
    known = predictor().constants
    own = own_layouts(runs, known.layout.log_spread(), known.calibration)
    ratio = [
        float(calibrated_problem(r.problem, own, r.device).times(r.layout).step_s) / r.step_s
        for r in runs
    ]
    assert np.abs(np.log(ratio)).max() < 0.08
    assert own.before == on.problem.parameters


def test_models_that_nobody_can_describe_are_left_out() -> None:
    few, many = small_runs(slower=1.0)
    frame = pd.concat([few, many]).assign(model="resnet152")
    with pytest.raises(ModelError, match="no described model"):
        transformers.halves(frame)
    assert set(transformers.halves(frame.assign(model="bert"))) == {"bert"}
