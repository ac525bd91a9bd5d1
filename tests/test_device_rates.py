"""What limits a device's rates: the physics of ``planners.step.device_rates``, and its classes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.machines import devices
from advisor.planners.core import Device, Operator, OperatorKind, Operators, Work
from advisor.planners.step import device_rates
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import (
    Devices,
    convolution_kind,
    sustained_flop_per_s,
    unmeasured,
)

SHEET = devices.accelerator_devices()
PARAMETERS = devices.device_parameters()
sizes = st.integers(1, 6)


def rates_of(device: Device) -> tuple[tuple[float, float, float]]:
    vector, half, memory = device_rates.log_rates(Devices([device]))[0].tolist()
    return ((vector, half, memory),)


def distance(device: Device, fitted: tuple[tuple[float, float, float], ...]) -> float:
    return float(device_rates.distances_from_fitted(Devices([device]), fitted)[0])


def _unmeasured(name: str) -> Device:
    return replace(SHEET[name], sustained_fp16_flop_per_s=None, sustained_fp32_flop_per_s=None)


@given(
    batch=sizes, groups=st.sampled_from([1, 8, 32]), inner=sizes, outer=sizes,
    side=st.integers(8, 32), kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]),
    is_backward=st.booleans(),
)  # fmt: skip
def test_a_convolution_finds_its_class_by_its_shapes(
    batch: int, groups: int, inner: int, outer: int, side: int, kernel: int, stride: int,
    is_backward: bool,
) -> None:  # fmt: skip
    made = (side + 2 * (kernel // 2) - kernel) // stride + 1
    data = f"{batch}x{groups * inner}x{side}x{side}"
    weight = f"{groups * outer}x{inner}x{kernel}x{kernel}"
    gradient = f"{batch}x{groups * outer}x{made}x{made}"
    flop = 2.0 * batch * groups * outer * made**2 * inner * kernel**2
    shapes = ",".join([gradient, data, weight] if is_backward else [data, weight, f"{outer}"])
    expected = "convolution"
    if groups > 1:
        expected = "depthwise"
    elif (kernel, stride) == (3, 1):
        expected = "winograd"
    assert convolution_kind(shapes, flop) == expected


@pytest.mark.parametrize(
    "shapes",
    ["", "3x4", "2x8x5x5", "2x64x16x16,64x32x2x2", "2x32x32x32,2x64x16x16,64x32x2x2", "x,y"],
)
def test_a_transposed_convolution_and_one_of_unknown_shapes_are_plain(shapes: str) -> None:
    assert convolution_kind(shapes, 1e9) == "convolution"


def test_torchs_own_calls_are_told_apart() -> None:
    torch = pytest.importorskip("torch")
    from advisor.collectors.hooks.trace.operators import observe

    def kind(layer: Any, side: int = 16) -> str:
        data = torch.randn(2, layer.in_channels, side, side)
        arguments = (data, layer.weight, None, layer.stride, layer.padding, (1, 1), False, (0, 0),
                     layer.groups)  # fmt: skip
        made = torch.ops.aten.convolution.default(*arguments)
        call = observe(torch.ops.aten.convolution.default, arguments, {}, made)
        return convolution_kind(call.shapes, call.flop)

    conv = torch.nn.Conv2d
    assert kind(conv(32, 32, 3, padding=1, groups=32, bias=False)) == "depthwise"
    assert kind(conv(32, 64, 3, padding=1, bias=False)) == "winograd"
    assert kind(conv(32, 64, 3, padding=1, stride=2, bias=False)) == "convolution"
    assert kind(conv(32, 64, 1, bias=False)) == "convolution"


def _seconds(kind: OperatorKind, device: Device, precision: str) -> float:
    work = Work(
        operators=Operators.of([Operator(name=kind, kind=kind, phase="forward", count=1, flop=1e12,
                                         bytes=1e6, dtype=precision)]),
        micro_batch=1, parameters=1, trainable_parameters=1, parameter_bytes=4,
        optimizer_state_bytes=0, saved_bytes_per_sample=0, precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    return float(step_time(work, [device], [1.0], PARAMETERS).micro_batch_s[0, 0])


def test_filtering_gains_on_vector_units_alone_and_groups_never_reach_matrix_units() -> None:
    v100 = _unmeasured("V100-SXM2-16GB")
    assert _seconds("winograd", v100, "fp32") < 0.7 * _seconds("convolution", v100, "fp32")
    assert _seconds("winograd", v100, "fp16") == _seconds("convolution", v100, "fp16")
    assert _seconds("depthwise", v100, "fp16") == pytest.approx(
        _seconds("depthwise", v100, "fp32")
    )
    assert _seconds("depthwise", v100, "fp16") > 10 * _seconds("convolution", v100, "fp16")


def test_a_vgg_gains_more_from_filtering_than_a_resnet_of_single_pixels() -> None:
    """VGG's products are 3 x 3 of stride one, two thirds of a bottleneck's are 1 x 1."""
    shares = []
    for text in ("224:0:2x64,2x128,3x256,3x512,3x512:plain:4096,4096",
                 "224:64:3x256,4x512,6x1024,3x2048:bottleneck"):  # fmt: skip
        work = convolutional_work(parse_network(text), micro_batch=8)
        flop = {kind: sum(o.flop for o in work.operators if o.kind == kind)
                for kind in ("winograd", "convolution")}  # fmt: skip
        shares.append(flop["winograd"] / sum(flop.values()))
    assert shares[0] == 1.0
    assert 0.3 < shares[1] < 0.55


def test_what_a_joule_buys_is_the_chips_and_not_the_years_of_the_board() -> None:
    h100, h200 = _unmeasured("H100-SXM5-80GB"), _unmeasured("H200-SXM-141GB")
    assert h100.tdp_w == h200.tdp_w
    assert sustained_flop_per_s(h200, "bf16", PARAMETERS) == pytest.approx(
        sustained_flop_per_s(h100, "bf16", PARAMETERS)
    )


@pytest.mark.parametrize("name", [n for n, d in SHEET.items() if d.best_fp16_flop_per_s])
def test_no_job_sustains_more_than_the_best_product_measured(name: str) -> None:
    device = SHEET[name]
    best = device.best_fp16_flop_per_s or 0.0
    assert sustained_flop_per_s(device, "bf16", PARAMETERS) < best
    halved = replace(device, best_fp16_flop_per_s=best / 4)
    assert sustained_flop_per_s(halved, "bf16", PARAMETERS) <= best / 4


def test_a_new_fast_chip_sustains_no_more_of_its_power_than_the_fitted_ones() -> None:
    """B200 sustains more than H100 and less than its best product; both are bound by power."""
    h100, b200 = (
        sustained_flop_per_s(SHEET[name], "bf16", PARAMETERS) / 1e12
        for name in ("H100-SXM5-80GB", "B200-SXM-180GB")
    )
    assert 400 < h100 < 700
    assert 1.5 * h100 < b200 < 1300


def test_kepler_reaches_less_of_both_rates_and_maxwell_as_pascal() -> None:
    kepler, maxwell, pascal = (
        device_rates.shares_of_rates(Devices([SHEET[name]]), PARAMETERS)[0]
        for name in ("K80", "M60", "P40")
    )
    assert kepler == PARAMETERS.kepler_fraction
    assert kepler < maxwell == pascal == 1.0


def test_widths_grow_with_the_distance_from_the_devices_fitted() -> None:
    work = convolutional_work(parse_network("32:0:2x64,2x128:plain"), micro_batch=8)
    card = _unmeasured("RTX-A5000")
    widths = []
    for factor in (1.0, 2.0, 4.0, 8.0):
        faster = replace(
            card,
            fp32_flop_per_s=(card.fp32_flop_per_s or 0) * factor,
            fp16_flop_per_s=(card.fp16_flop_per_s or 0) * factor,
            memory_bytes_per_s=card.memory_bytes_per_s * factor,
        )
        parameters = replace(PARAMETERS, fitted_rates=rates_of(card))
        widths.append(float(step_time(work, [faster], [8.0], parameters).log_sd[0]))
        assert distance(faster, parameters.fitted_rates) == pytest.approx(
            math.sqrt(3) * math.log(factor)
        )
    assert widths == sorted(set(widths))
    assert PARAMETERS.distance_log_sd > 0
    assert distance(SHEET["B200-SXM-180GB"], PARAMETERS.fitted_rates) > 0.5
    assert distance(SHEET["T4"], PARAMETERS.fitted_rates) == pytest.approx(0.0, abs=1e-3)


def test_double_precision_has_an_answer_everywhere_and_is_nowhere_faster_than_single() -> None:
    """A gradient's norm in double precision: no reason to have no answer for any machine."""
    for device in map(unmeasured, SHEET.values()):
        runs = device_rates.runs_as(device, "fp64")
        single = device_rates.runs_as(device, "fp32")
        assert runs == ("fp64" if device_rates.double_shares(Devices([device]))[0] else single)
        rates = [sustained_flop_per_s(device, one, PARAMETERS) for one in (runs, single)]
        assert rates[0] <= rates[1] * 1.01


# Results per clock in double over single precision of chips whose datasheets state both rates.
@pytest.mark.parametrize(
    ("name", "tflop_per_s"),
    [("P100-PCIe-16GB", 4.7), ("V100-SXM2-16GB", 7.8), ("A100-SXM4-40GB", 19.5), ("T4", 0.25),
     ("RTX-3090", 0.556), ("H100-SXM5-80GB", 67.0), ("MI210", 22.6), ("L4", 0.47)],
)  # fmt: skip
def test_rates_in_double_precision_are_those_of_the_datasheets(
    name: str, tflop_per_s: float
) -> None:
    found = device_rates.peak_flop_per_s(SHEET[name], "fp64")
    assert found == pytest.approx(1e12 * tflop_per_s, rel=0.05)


def test_a_board_of_two_dies_is_two_devices_to_a_script() -> None:
    one, board = SHEET["MI210"], SHEET["MI250"]  # the same die, alone and twice on a board
    for name in ("memory_bytes", "memory_bytes_per_s", "fp16_flop_per_s", "fp32_flop_per_s"):
        assert getattr(board, name) == pytest.approx(getattr(one, name), rel=0.01)


def test_the_distance_of_every_device_is_that_to_each_fitted_one_taken_anew() -> None:
    fitted = PARAMETERS.fitted_rates
    table = Devices(SHEET.values())
    anew = [min(math.dist(*rates_of(device), one) for one in fitted) for device in table]
    assert device_rates.distances_from_fitted(table, fitted) == pytest.approx(anew, rel=1e-12)
    # Other fitted devices give other distances.
    assert distance(SHEET["T4"], fitted[:1]) == pytest.approx(
        math.dist(*rates_of(SHEET["T4"]), fitted[0])
    )
    assert distance(SHEET["T4"], ()) == 0.0


def test_rows_taken_from_a_table_are_timed_as_they_are_alone() -> None:
    work = convolutional_work(parse_network("32:0:2x64,2x128:plain"), micro_batch=8)
    table = Devices(SHEET.values())
    some = table.take(np.arange(len(table))[::-3]).take(np.array([5, 0, 2]))
    assert [one.name for one in some] == [some[i].name for i in range(3)]
    together = step_time(work, some, [4.0, 8.0], PARAMETERS)
    for row, device in enumerate(some):
        alone = step_time(work, [device], [4.0, 8.0], PARAMETERS)
        assert together.micro_batch_s[row] == pytest.approx(alone.micro_batch_s[0], rel=1e-12)
        assert together.log_sd[row] == pytest.approx(alone.log_sd[0], rel=1e-12)


def test_a_card_of_unmeasured_rate_is_timed_by_its_operators_where_its_family_was_fitted() -> None:
    from advisor.catalogue import Catalogue
    from advisor.estimate.predictor import Predictor
    from advisor.estimate.ways.model_parallel import on_machine
    from advisor.jobs.describe import described_job
    from advisor.machines.fleet import lone_fleet
    from advisor.planners.core.setup import Transformer
    from advisor.planners.step.describe import transformer_work

    work = transformer_work(
        Transformer(layers=4, hidden=512, heads=8, sequence=256, vocabulary=1000), micro_batch=4,
        precision="bf16",
    )  # fmt: skip
    asking = Predictor(Catalogue.load(with_overrides=False), learned=None)
    on = {}
    for name in ("RTX-A4000", "A100-SXM4-80GB", "B200-SXM-180GB"):
        row = asking.catalogue.accelerators[name]
        case = asking.case(described_job(work, name="t"), fleet=lone_fleet(SHEET[name], 1, row))
        on[name] = on_machine(case, 0)
    assert on["RTX-A4000"].problem.block_table is not None
    assert on["A100-SXM4-80GB"].problem.block_table is None
    assert on["A100-SXM4-80GB"].law.log_sd < on["RTX-A4000"].law.log_sd
    # Of Blackwell the operators know no more than the shapes do.
    assert on["B200-SXM-180GB"].problem.block_table is None


def test_fp4_is_blackwells_and_runs_as_fp8_elsewhere() -> None:
    """NVIDIA's datasheets: 10 dense Pflop/s of a GB200 and 15 of a GB300, beside 5 in fp8."""
    for name, peak in (("GB200-186GB", 10e15), ("GB300-279GB", 15e15)):
        assert device_rates.peak_flop_per_s(SHEET[name], "fp4") == peak
        assert device_rates.runs_as(SHEET[name], "fp4") == "fp4"
        fp4, fp8 = (sustained_flop_per_s(SHEET[name], kind, PARAMETERS) for kind in ("fp4", "fp8"))
        assert fp4 > fp8
    assert device_rates.runs_as(SHEET["H100-SXM5-80GB"], "fp4") == "fp8"
    assert device_rates.runs_as(SHEET["A100-SXM4-80GB"], "fp4") == "bf16"
