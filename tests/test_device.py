"""Laws of the step-time model on every device of the sheet."""

import csv
import dataclasses

import numpy as np
import pytest

from advisor import data
from advisor.machines import devices
from advisor.machines.devices import cpu_device
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Device, Operator, OperatorKind, Work
from advisor.planners.step.calibrate import calibrated_work
from advisor.planners.step.device import GRAIN, step_time
from advisor.planners.step.device_rates import DeviceParameters, runs_as

WORK = Work(
    operators=(
        Operator(
            name="mm", kind="matmul", phase="forward", count=10, flop=1e12, bytes=1e9,
            fixed_bytes=1e8,
        ),
        Operator(
            name="mm", kind="matmul", phase="backward", count=20, flop=2e12, bytes=2e9,
            fixed_bytes=2e8,
        ),
        Operator(
            name="add", kind="elementwise", phase="forward", count=50, flop=1e9, bytes=5e9
        ),
        Operator(
            name="adam", kind="optimizer", phase="optimizer", count=5, flop=1e8, bytes=1e9,
            fixed_bytes=1e9,
        ),
    ),
    micro_batch=8, parameters=10**8, trainable_parameters=10**8, parameter_bytes=4e8,
    optimizer_state_bytes=8e8, saved_bytes_per_sample=1e8,
)  # fmt: skip


@pytest.fixture(scope="module")
def parameters() -> DeviceParameters:
    return devices.device_parameters()


@pytest.fixture(scope="module")
def sheet() -> dict[str, Device]:
    return devices.accelerator_devices()


@pytest.mark.parametrize(("card", "bits", "gbit_per_s"), [
    ("A100-SXM4-40GB", 5120, 2.43), ("A100-PCIe-40GB", 5120, 2.43),
    ("A100-SXM4-80GB", 5120, 3.186), ("A100-PCIe-80GB", 5120, 3.024),
    ("V100-SXM2-16GB", 4096, 1.752), ("V100-SXM2-32GB", 4096, 1.752), ("T4", 256, 10.0),
    ("P100-PCIe-16GB", 4096, 1.43), ("H100-SXM5-80GB", 5120, 5.2), ("K80", 384, 5.0),
    ("L4", 192, 12.5), ("A10G", 384, 12.5), ("L40S", 384, 18.0), ("RTX-A6000", 384, 16.0),
])  # fmt: skip
def test_bandwidth_is_the_width_of_the_bus_by_the_rate_of_its_pins(
    card: str, bits: int, gbit_per_s: float
) -> None:
    """Bits and effective memory clocks [Gbit/s a pin] of NVIDIA's data sheets and white papers."""
    for folder, column in (("devices", "bandwidth_gb_s"), ("catalogue", "memory_bandwidth_gbs")):
        with (data.root("datasets") / folder / "accelerators.csv").open(encoding="utf-8") as file:
            (row,) = [one for one in csv.DictReader(file) if one["name"] == card]
        assert float(row[column]) == pytest.approx(bits * gbit_per_s / 8, rel=0.02)


def test_shares_sum_to_the_micro_batch(
    parameters: DeviceParameters, sheet: dict[str, Device]
) -> None:
    t = step_time(WORK, list(sheet.values()), [1, 8, 64], parameters)
    np.testing.assert_allclose(t.compute_s + t.memory_s + t.launch_s, t.micro_batch_s)
    assert t.micro_batch_s.shape == (len(sheet), 3)
    assert np.all(t.backward_s < t.micro_batch_s)


def test_time_grows_with_the_batch_and_no_faster_than_in_proportion(
    parameters: DeviceParameters, sheet: dict[str, Device]
) -> None:
    t = step_time(WORK, list(sheet.values()), [1, 2, 4, 8], parameters).micro_batch_s
    assert np.all(np.diff(t, axis=1) >= 0)
    assert np.all(t[:, 1:] <= 2 * t[:, :-1] * (1 + 1e-12))


def test_precision_that_a_device_lacks_is_said(sheet: dict[str, Device]) -> None:
    assert runs_as(sheet["V100-SXM2-16GB"], "fp8") == "fp16"
    assert runs_as(sheet["T4"], "bf16") == "fp16"
    assert runs_as(sheet["P40"], "fp16") == "fp32"
    with pytest.raises(PlanningError, match="fp7"):
        runs_as(sheet["T4"], "fp7")


def test_a_job_without_forward_operators_is_refused(parameters: DeviceParameters) -> None:
    with pytest.raises(PlanningError, match="forward"):
        step_time(dataclasses.replace(WORK, operators=()), [], [1], parameters)


def test_cpu_devices_scale_with_their_cores() -> None:
    small, big = (
        cpu_device(name="c6i", vcpus=n, memory_bytes=1e9, cpu_model="Xeon 8375C") for n in (8, 16)
    )
    assert big.fp32_flop_per_s == 2 * (small.fp32_flop_per_s or 0)
    assert small.memory_bytes_per_s < big.memory_bytes_per_s <= 2 * small.memory_bytes_per_s


def test_a_cpu_calibration_carries_over_to_cpus_and_not_to_gpus(sheet: dict[str, Device]) -> None:
    host = cpu_device(name="h", vcpus=2, memory_bytes=8e9, cpu_model="AMD EPYC 9R45")
    target = cpu_device(name="c6i", vcpus=8, memory_bytes=8e9, cpu_model="Xeon 8375C")
    factor, sd = calibrated_work(
        1.0, 2.0, 0.01, [host], 0.3, [target, sheet["T4"]], [0.3, 0.3],
        devices.calibration_parameters(),
    )  # fmt: skip
    assert np.log(2) > factor[0] > 0.8 * np.log(2)
    # No data has shown that it does: the operators alone decide, with their whole width.
    assert factor[1] == 0.0
    assert sd[0] < sd[1] == pytest.approx(0.3)


@pytest.mark.parametrize(("elements", "speedup"), [(GRAIN, 1.0), (64 * GRAIN, 8.0)])
def test_small_calls_leave_cores_of_a_cpu_idle(
    parameters: DeviceParameters, elements: int, speedup: float
) -> None:
    """A call of one grain gains nothing from more cores; one of many gains as its memory does.

    Less what a core alone does beyond its share, and what the threads wait for each other.
    """
    free = dataclasses.replace(
        parameters,
        split_s=0.0,
        latency_s=dict.fromkeys(parameters.latency_s, 0.0),
        dispatch_s=dict.fromkeys(parameters.dispatch_s, 0.0),
    )
    call = Operator(
        name="relu", kind="elementwise", phase="forward", count=1, flop=elements,
        bytes=4.0 * elements,
    )  # fmt: skip
    work = dataclasses.replace(WORK, operators=(call,), micro_batch=1)
    one = Device(
        name="one", kind="cpu", memory_bytes=1e9, memory_bytes_per_s=1e9, fp32_flop_per_s=1e15,
        cores=1,
    )  # fmt: skip
    eight = dataclasses.replace(one, name="eight", cores=8, memory_bytes_per_s=8e9)
    slow, fast = step_time(work, [one, eight], [1], free).micro_batch_s[:, 0]
    lost = parameters.split_gain if speedup > 1.0 else 1.0
    assert slow / fast == pytest.approx(speedup / lost, rel=1e-4)
    waits = dataclasses.replace(free, split_s=1e-3)
    alone, waited = step_time(work, [one, eight], [1], waits).micro_batch_s[:, 0]
    assert alone == slow  # nobody to wait for
    assert waited - fast == pytest.approx(1e-3 if speedup > 1.0 else 0.0)


def test_the_interval_is_wider_the_less_was_seen(
    parameters: DeviceParameters, sheet: dict[str, Device]
) -> None:
    def log_sd(device: Device, kind: OperatorKind = "matmul") -> float:
        operators = tuple(dataclasses.replace(o, kind=kind) for o in WORK.operators)
        work = dataclasses.replace(WORK, operators=operators)
        return float(step_time(work, [device], [8], parameters).log_sd[0])

    known = sheet["A100-SXM4-40GB"]
    guessed = dataclasses.replace(
        known, sustained_fp32_flop_per_s=None, sustained_fp16_flop_per_s=None
    )
    unseen = dataclasses.replace(guessed, architecture="Ohm")
    assert log_sd(known) < log_sd(guessed) < log_sd(unseen) < log_sd(unseen, "recurrent")
    assert log_sd(guessed) < log_sd(dataclasses.replace(guessed, kind="tpu"))
    # A rate of large products says nothing of how a new chip family convolves.
    rated = dataclasses.replace(known, architecture="Ohm")
    assert log_sd(rated) < log_sd(unseen)
    assert log_sd(rated, "convolution") == log_sd(unseen, "convolution")
