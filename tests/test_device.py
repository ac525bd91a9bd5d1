"""Laws of the step-time model on every device of the sheet."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from advisor.machines import devices
from advisor.machines.devices import cpu_device
from advisor.planners.core import GB, Device, Operator, OperatorKind, Operators, Work
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.setup import TrainingSetup
from advisor.planners.step.calibrate import calibrated_work
from advisor.planners.step.device import GRAIN, PRODUCTS, step_time
from advisor.planners.step.device_rates import (
    DeviceParameters,
    Devices,
    generations_before_maxwell,
    measured_flop_per_s,
    run_on_matrix_units,
    runs_as,
    sustained_flop_per_s,
    unmeasured,
    vector_units,
)

WORK = Work(
    operators=Operators.of((
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
    )),
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
    rate = devices.accelerator_devices()[card].memory_bytes_per_s
    assert rate / GB == pytest.approx(bits * gbit_per_s / 8, rel=0.02)


def test_shares_sum_to_the_micro_batch(
    parameters: DeviceParameters, sheet: dict[str, Device]
) -> None:
    t = step_time(WORK, list(sheet.values()), [1, 8, 64], parameters)
    np.testing.assert_allclose(t.compute_s + t.memory_s + t.launch_s + t.copy_s, t.micro_batch_s)
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
        step_time(dataclasses.replace(WORK, operators=Operators.of(())), [], [1], parameters)


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
    work = dataclasses.replace(WORK, operators=Operators.of([call]), micro_batch=1)
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
        operators = [dataclasses.replace(o, kind=kind) for o in WORK.operators]
        work = dataclasses.replace(WORK, operators=Operators.of(operators))
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


MIXED = dataclasses.replace(
    WORK,
    operators=Operators.of((
        *WORK.operators,
        Operator(name="conv", kind="convolution", phase="forward", count=7, flop=9e11, bytes=3e9,
                 fixed_bytes=1e7, listed=5),
        Operator(name="dw", kind="depthwise", phase="backward", count=3, flop=4e9, bytes=6e9),
        Operator(name="tiny", kind="elementwise", phase="forward", count=9, flop=1e3, bytes=1e6),
        Operator(name="lstm", kind="recurrent", phase="forward", count=70, flop=4e8, bytes=1e7),
    )),
    precision="fp16", input_bytes_per_sample=6e5,
)  # fmt: skip


def by_hand(work: Work, device: Device, batch: float, p: DeviceParameters) -> dict[str, Any]:
    """One device and batch, operator by operator: the roofline, its launches and its host."""
    is_cpu, scale = device.kind == "cpu", batch / work.micro_batch
    parts = {
        phase: {"compute": 0.0, "memory": 0.0} for phase in ("forward", "backward", "optimizer")
    }
    busy, calls, of_python = (dict.fromkeys(parts, 0.0) for _ in range(3))
    launches = p.compiled_launch_fraction if work.is_compiled else 1.0
    for one in work.operators:
        times = 1.0 if one.phase == "optimizer" else scale
        asked = work.precision if one.kind in PRODUCTS else one.dtype
        runs = runs_as(device, asked)
        share = p.efficiencies[device.kind][one.kind]
        is_convolved = one.kind in ("convolution", "winograd")
        on_matrix = run_on_matrix_units(Devices([device]), np.array([runs]))[0]
        is_filtered = device.kind == "gpu" and one.kind == "winograd" and runs != "fp64"
        if is_convolved and on_matrix:
            share = p.efficiencies[device.kind].get(
                "matrix_convolution", p.efficiencies[device.kind]["convolution"]
            )
        products = sustained_flop_per_s(device, runs, p)
        vector = device.fp32_flop_per_s or products / 16
        rate = share.compute * (products if one.kind in PRODUCTS else vector)
        if (
            asked in ("fp16", "bf16")
            and device.kind == "gpu"
            and vector_units(Devices([device]))[0] == "single"
        ):
            rate *= p.widened_fraction if one.kind in PRODUCTS else 1.0
            rate *= p.widened_depthwise_fraction if one.kind == "depthwise" else 1.0
        if runs == "fp64" and device.kind == "gpu" and one.kind != "matmul":
            rate = 0.8 * products if is_convolved else min(rate, products)
        memory = device.memory_bytes_per_s * share.memory
        memory *= p.kepler_fraction ** generations_before_maxwell(Devices([device]))[0]
        if work.is_compiled and one.kind not in PRODUCTS:
            memory /= p.compiled_traffic_fraction
        moved = times * (one.bytes - one.fixed_bytes) + one.fixed_bytes
        slower = 1.0
        if is_cpu and (device.cores or 1) > 1:
            pieces = max(moved / one.count / 4 / GRAIN, 1.0)
            slower = max((device.cores or 1) / pieces, p.split_gain) / p.split_gain
            busy[one.phase] += p.split_s * one.count * (pieces > 1)
        elif is_cpu:
            slower = 1 / p.split_gain
        n = one.count if is_cpu or one.listed is None else one.listed
        filling = n * p.winograd_fill_flop * (is_filtered and not on_matrix)
        c, m = (times * one.flop + filling) / rate * slower, moved / memory * slower
        took = max(c, m) + p.unhidden_fraction * min(c, m)
        parts[one.phase]["compute" if c >= m else "memory"] += took
        calls[one.phase] += n
        in_library = one.kind == "recurrent" or one.listed is not None
        of_python[one.phase] += n if one.phase == "forward" and not in_library else 0
        busy[one.phase] += took + n * launches * p.latency_s[device.kind]
    is_recorded = not is_cpu and work.call_s is not None
    usual = p.dispatch_s[device.kind]
    slower = device.call_s / usual if device.call_s else 1.0  # a call was measured there
    each = ((is_recorded and work.call_s) or usual) * slower * launches
    host_log_sd = p.host_log_sd * (0.5 if device.call_s else 1.0)
    link = 1 / (device.host_bytes_per_s or p.link_bytes_per_s)
    link += 0 if work.is_pinned else 1 / p.staged_bytes_per_s
    copied = scale * work.micro_batch * work.input_bytes_per_sample * link
    whole, logs = {}, []
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    weights = weights / weights.sum()
    for node in nodes:
        host = math.exp(node * host_log_sd) if is_recorded else 1.0
        total = {}
        for phase in parts:
            cheap = p.engine_call_fraction if is_recorded else 1.0
            made = of_python[phase] + (calls[phase] - of_python[phase]) * cheap
            total[phase] = max(busy[phase], made * each * host)
        if is_recorded:
            total["forward"] += copied
            fed_s = min(work.loaders / 8, 1) * p.fed_step_s * slower
            total["forward"] += fed_s * math.exp(node * p.fed_step_log_sd)
        whole[node] = total
        logs.append(math.log(sum(total.values())))
    mean = {
        phase: math.exp(
            sum(w * math.log(whole[n][phase]) for n, w in zip(nodes, weights, strict=True))
        )
        for phase in parts
    }
    center = float(weights @ logs)
    return {
        "parts": parts, "total": mean,
        "host_log_sd": math.sqrt(float(weights @ np.square(np.array(logs) - center))),
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"setup": TrainingSetup(kernels="compiled")}, {"call_s": 2e-5},
        {"call_s": 2e-5, "loaders": 4},
    ],
)  # fmt: skip
def test_a_step_is_its_operators_one_by_one_and_the_calls_that_start_them(
    parameters: DeviceParameters, sheet: dict[str, Device], precision: Any, changes: dict[str, Any]
) -> None:
    cpus = [
        cpu_device(name="c6i", vcpus=n, memory_bytes=1e9, cpu_model="Xeon 8375C") for n in (2, 16)
    ]
    cards = [sheet[name] for name in ("V100-SXM2-16GB", "T4", "H100-SXM5-80GB", "K80", "P40")]
    told = [dataclasses.replace(cards[1], call_s=3e-5), *cards, *cpus]
    work = dataclasses.replace(MIXED, precision=precision, **changes)
    if precision == "fp32" and "call_s" in changes:  # its convolutions run as TF32: another class
        work = dataclasses.replace(
            work, operators=Operators.of(o for o in work.operators if o.kind != "convolution")
        )
    batches = [0.25, 8.0, 64.0]
    found = step_time(work, told, batches, parameters)
    for i, device in enumerate(told):
        for j, batch in enumerate(batches):
            hand = by_hand(work, device, batch, parameters)
            total, parts = hand["total"], hand["parts"]
            compute = parts["forward"]["compute"] + parts["backward"]["compute"]
            memory = parts["forward"]["memory"] + parts["backward"]["memory"]
            assert found.micro_batch_s[i, j] == pytest.approx(total["forward"] + total["backward"])
            assert found.backward_s[i, j] == pytest.approx(total["backward"])
            assert found.compute_s[i, j] == pytest.approx(compute)
            assert found.memory_s[i, j] == pytest.approx(memory)
            assert found.host_log_sd[i, j] == pytest.approx(hand["host_log_sd"], abs=1e-9)
            assert found.optimizer_s[i] == pytest.approx(total["optimizer"])
            assert found.optimizer_launch_s[i] == pytest.approx(
                total["optimizer"] - sum(parts["optimizer"].values()), abs=1e-12
            )


def test_a_board_runs_out_of_arithmetic_or_of_power(
    parameters: DeviceParameters, sheet: dict[str, Device]
) -> None:
    """Without power's limit a share of the peak, without arithmetic's the joules; both between."""
    p = parameters
    card = dataclasses.replace(
        unmeasured(sheet["L4"]), tdp_w=100.0, release_year=2023, best_fp16_flop_per_s=None
    )
    assert vector_units(Devices([card]))[0] != "single"
    arithmetic = (card.fp16_flop_per_s or 0) * p.sustained_fraction["gpu"]["fp16"]
    power, n = 100 * p.tensor_flop_per_j, p.limit_sharpness
    expected = (arithmetic**-n + power**-n) ** (-1 / n)
    assert sustained_flop_per_s(card, "fp16", p) == pytest.approx(expected)
    assert expected < min(arithmetic, power)
    later = dataclasses.replace(card, release_year=2023 + p.flop_per_j_doubling_years)
    twice = (arithmetic**-n + (2 * power) ** -n) ** (-1 / n)
    assert sustained_flop_per_s(later, "fp16", p) == pytest.approx(twice)
    boundless = dataclasses.replace(card, tdp_w=None)
    assert sustained_flop_per_s(boundless, "fp16", p) == pytest.approx(arithmetic)
    vector = (card.fp32_flop_per_s or 0) * p.vector_fraction[vector_units(Devices([card]))[0]]
    by_vector = (vector**-n + (100 * p.vector_flop_per_j) ** -n) ** (-1 / n)
    assert sustained_flop_per_s(card, "fp32", p) == pytest.approx(by_vector)
    seen = dataclasses.replace(card, best_fp16_flop_per_s=arithmetic / 2)
    halved = ((arithmetic / 2) ** -n + power**-n) ** (-1 / n)
    assert sustained_flop_per_s(seen, "fp16", p) == pytest.approx(halved)
    measured = dataclasses.replace(card, sustained_fp16_flop_per_s=5e13)
    assert measured_flop_per_s(measured, "fp16") == 5e13
    assert sustained_flop_per_s(measured, "fp16", p) == 5e13
    eight = 5e13 * (card.fp8_flop_per_s or 0) / (card.fp16_flop_per_s or 1)
    assert sustained_flop_per_s(measured, "fp8", p) == pytest.approx(eight)


def test_the_interval_adds_up_what_was_not_seen_in_squares(
    parameters: DeviceParameters, sheet: dict[str, Device]
) -> None:
    """Each reason alone, and together; a step of classes half of which nobody measured."""
    card = sheet["V100-SXM2-16GB"]
    known = dataclasses.replace(
        parameters, log_sd=0.1, unseen_architecture_log_sd=0.2, unseen_kind_log_sd=0.4,
        unmeasured_rate_log_sd=0.8, distance_log_sd=0.0, unfitted_device_log_sd=1.6,
        fitted_architectures=frozenset({card.architecture}),
        fitted_kinds=frozenset({o.kind for o in WORK.operators}),
    )  # fmt: skip

    def width(device: Device, p: DeviceParameters = known, work: Work = WORK) -> float:
        return float(step_time(work, [device], [8], p).log_sd[0])

    measured = dataclasses.replace(card, sustained_fp32_flop_per_s=1e13)
    assert width(measured) == pytest.approx(0.1)
    assert width(unmeasured(card)) == pytest.approx(math.hypot(0.1, 0.8))
    other = dataclasses.replace(measured, architecture="new")
    assert width(other) == pytest.approx(math.hypot(0.1, 0.2))
    # Of flop and of traffic that grows: each counts for half.
    flop = [o.flop for o in WORK.operators]
    grown = [o.bytes - o.fixed_bytes for o in WORK.operators]
    share = sum(
        f / sum(flop) / 2 + g / sum(grown) / 2
        for o, f, g in zip(WORK.operators, flop, grown, strict=True) if o.kind == "matmul"
    )  # fmt: skip
    few = dataclasses.replace(known, fitted_kinds=known.fitted_kinds - {"matmul"})
    assert width(measured, few) == pytest.approx(math.sqrt(0.01 + share * 0.16))
    host = cpu_device(name="c6i", vcpus=4, memory_bytes=1e9, cpu_model="Xeon 8375C")
    of_host = dataclasses.replace(known, fitted_architectures=frozenset({host.architecture}))
    guessed = 0.0 if measured_flop_per_s(host, "fp32") else 0.64
    assert width(host, of_host) == pytest.approx(math.sqrt(0.01 + 2.56 + guessed))
