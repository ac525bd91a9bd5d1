"""``advisor train steps``: own measured runs, heard for every job on the same cards."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor import data
from advisor.cli.program import app
from advisor.errors import ModelError, UsageError
from advisor.estimate.case import constants
from advisor.jobs import Actual, append_actual
from advisor.lab.data.recorded import RecordedStep, recorded_steps
from advisor.lab.fit.device import without
from advisor.machines import devices
from advisor.planners.core.arrays import select
from advisor.planners.step.calibrate import at_batch, expected_errors, own_hosts, with_own
from advisor.planners.step.device import step_time
from advisor.train.own_steps import OwnStep, TrainSteps, errors_of, own_steps

SHIPPED = constants().residual
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"


@pytest.mark.parametrize("gpu", ["TITAN-RTX", "TITAN-Xp", "RTX-2060-MaxQ"])
def test_half_of_ones_own_runs_halve_what_the_others_err_by(gpu: str) -> None:
    """Public steps of one machine as a user's: errors on the other half of its networks."""
    steps = [
        s
        for s in recorded_steps(data.measurements(None))
        if s.device.name == gpu and s.precision == "fp32"
    ]
    names = np.random.default_rng(0).permutation(sorted({s.network for s in steps}))
    known = set(names[: len(names) // 2].tolist())
    own = errors_of([_own(s) for s in steps if s.network in known])
    others = [_own(s) for s in steps if s.network not in known]
    alone = without(SHIPPED, np.asarray(SHIPPED.seen.points.device == gpu))
    off = {}
    for what, process in (("published", alone), ("own", with_own(alone, own))):
        errors = errors_of(others)
        found = [
            float(
                expected_errors(
                    one.work, [one.device], process, errors.points.host_log_sd[i : i + 1]
                ).mean[0]
            )
            for i, one in enumerate(others)
        ]
        off[what] = float(np.mean(np.abs(errors.of_rates - np.array(found))))
    assert off["own"] < 0.85 * off["published"]


def _own(step: RecordedStep) -> OwnStep:
    assert step.job.work is not None
    return OwnStep(
        job=step.network, work=at_batch(step.job.work, step.batch), device=step.device,
        seconds=step.seconds,
    )  # fmt: skip


def test_a_noted_run_is_an_own_step_and_moves_what_is_expected_on_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "own_models", lambda: tmp_path / "models")
    runs = tmp_path / "runs"
    shutil.copytree(GOLDEN, runs / GOLDEN.name)
    with pytest.raises(UsageError, match="no recorded job has a measured run"):
        TrainSteps(runs=runs)()
    for name, step_s in (("T4", 0.05), ("T4", 0.052)):
        append_actual(
            runs, Actual(run=GOLDEN.name, provider="", instance_type=name, count=1, step_s=step_s)
        )
    steps = list(own_steps(runs))
    assert [s.device.name for s in steps] == ["T4", "T4"]
    done = CliRunner().invoke(app, ["train", "steps", "--runs", str(runs)])
    assert done.exit_code == 0, done.output
    assert "2 runs of 1 jobs on T4" in done.output
    before, after = SHIPPED, devices.residual_parameters()
    assert len(after.seen.points) == len(before.seen.points) + 2
    work, card = steps[0].work, steps[0].device
    assert own_hosts([card], after).all()
    assert not own_hosts([card], before).any()
    columns = step_time(work, [card], [float(work.micro_batch)], constants().device)
    one, two = (
        expected_errors(work, [card], p, columns.host_log_sd[:, 0]) for p in (before, after)
    )
    truth = errors_of(steps).of_rates.mean()
    assert abs(two.mean[0] - truth) < abs(one.mean[0] - truth)


def test_own_steps_of_another_fit_are_left_aside_and_spoilt_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "own_models", lambda: tmp_path)
    few = select(SHIPPED.seen, np.arange(len(SHIPPED.seen.points)) < 2)
    record = devices.errors_record(devices.OwnErrors(device_model=devices.model_day(), seen=few))
    file = devices.own_steps_file()
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record | {"device_model": "1999-01-01"}))
    assert len(devices.residual_parameters().seen.points) == len(SHIPPED.seen.points)
    file.write_text(json.dumps(record | {"seen": {}}))
    with pytest.raises(ModelError, match="cannot use"):
        devices.residual_parameters()


def test_the_process_without_own_steps_is_the_packaged_one() -> None:
    assert not own_hosts([devices.accelerator_devices()["T4"]], SHIPPED).any()
    assert not own_hosts([], replace(SHIPPED)).size
