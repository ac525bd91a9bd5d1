"""A recorded model's units: what each takes of a step, and when its samples arrive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from recorded_models import transformer

from advisor.machines import devices
from advisor.planners.core import Operator, Operators, Phase
from advisor.planners.core.layout_case import UnitTimes
from advisor.planners.step.device import step_time
from advisor.planners.step.model_units import (
    idle_s_per_sample,
    layer_kind,
    relative_speed,
    transformer_blocks,
    unit_times,
    vcpus_needed,
    work_units,
)

WORK = transformer(blocks=3, hidden=256, tokens=32)
PARTS = work_units(WORK)
PARAMETERS = devices.device_parameters()
CARD = devices.accelerator_devices()["A10G"]
BATCHES = [1.0, 4.0, 32.0]


def times(**more: object) -> UnitTimes:
    return unit_times(WORK, PARTS, [CARD], BATCHES, PARAMETERS, **more)[0]  # type: ignore[arg-type]


def test_units_share_a_step_out_whatever_they_are() -> None:
    """They add up to the device's step, times what measurements say of it."""
    whole = step_time(WORK, [CARD], BATCHES, PARAMETERS)
    found, slower = times(), times(log_factor=np.log(1.5), log_sd=0.2)
    forward = whole.micro_batch_s[0] - whole.backward_s[0]
    np.testing.assert_allclose(found.forward_s.sum(axis=1), forward)
    np.testing.assert_allclose(found.backward_s.sum(axis=1), whole.backward_s[0])
    np.testing.assert_allclose(slower.forward_s, 1.5 * found.forward_s)
    np.testing.assert_allclose(slower.backward_s, 1.5 * found.backward_s)
    assert slower.optimizer_s == pytest.approx(1.5 * whole.optimizer_s[0])
    assert slower.log_sd == 0.2
    assert found.log_sd == pytest.approx(whole.log_sd[0])
    alone = unit_times(WORK, PARTS[:1], [CARD], BATCHES, PARAMETERS)[0]
    np.testing.assert_allclose(alone.forward_s[:, 0], forward)


def test_equal_blocks_take_equally_long_and_as_their_own_roofline() -> None:
    """A block's share is that of its layers as one operator a pass each, timed alone."""
    found = times()
    blocks = [i for i, part in enumerate(PARTS) if part.is_block]
    assert len(blocks) == 3
    np.testing.assert_allclose(found.forward_s[:, blocks[1]], found.forward_s[:, blocks[2]])
    rooflines, given = [], 0.0
    stored = WORK.parameter_bytes / WORK.parameters
    for part in PARTS:
        made: list[Operator] = []
        for layer in part.layers:
            moved = (given + layer.output_bytes_per_sample) * WORK.micro_batch
            own = layer.parameters * stored
            passes: list[tuple[Phase, int, float]] = [
                ("forward", 1, layer.forward_flop_per_sample),
                ("backward", 2, layer.backward_flop_per_sample),
            ]
            made += [
                Operator(
                    name=layer.name, kind=layer_kind(layer), phase=phase, count=times,
                    flop=flop * WORK.micro_batch, bytes=times * (moved + own),
                    fixed_bytes=times * own,
                )
                for phase, times, flop in passes
            ]  # fmt: skip
            given = layer.output_bytes_per_sample
        work = replace(WORK, operators=Operators.of(made))
        columns = step_time(work, [CARD], BATCHES, PARAMETERS)
        rooflines.append([columns.micro_batch_s[0] - columns.backward_s[0], columns.backward_s[0]])
    share = np.array(rooflines) / np.sum(rooflines, axis=0)
    np.testing.assert_allclose(found.forward_s / found.forward_s.sum(1)[:, None], share[:, 0].T)
    np.testing.assert_allclose(found.backward_s / found.backward_s.sum(1)[:, None], share[:, 1].T)


def test_tensor_parallel_ranks_share_blocks_and_no_normalisation_and_never_slow_a_unit() -> None:
    one, two = times(), times(tp=2)
    assert two.optimizer_s == one.optimizer_s / 2
    for i, part in enumerate(PARTS):
        for a, b in ((one.forward_s, two.forward_s), (one.backward_s, two.backward_s)):
            ratio = b[-1, i] / a[-1, i]
            assert ratio == pytest.approx(1.0) if not part.is_block else 0.45 < ratio < 1


def test_devices_asked_together_are_as_asked_alone() -> None:
    together = list(devices.accelerator_devices().values())[:12]
    for tp in (1, 4):
        found = unit_times(WORK, PARTS, together, BATCHES, PARAMETERS, tp=tp)
        for device, one in zip(together, found, strict=True):
            (alone,) = unit_times(WORK, PARTS, [device], BATCHES, PARAMETERS, tp=tp)
            np.testing.assert_allclose(one.forward_s, alone.forward_s, rtol=1e-12)
            np.testing.assert_allclose(one.backward_s, alone.backward_s, rtol=1e-12)
            assert one.optimizer_s == pytest.approx(alone.optimizer_s, rel=1e-12)
            assert one.log_sd == pytest.approx(alone.log_sd, rel=1e-12)


def test_a_unit_measured_twice_as_slow_as_its_roofline_weighs_twice_as_much() -> None:
    """As far as the gain says; a mean factor is the whole step's."""
    host = devices.accelerator_devices()["T4"]
    roof = unit_times(WORK, PARTS, [host], [WORK.micro_batch], PARAMETERS)[0]
    even = times()

    def measured(factors: list[float]) -> UnitTimes:
        layers = []
        for at, (part, factor) in enumerate(zip(PARTS, factors, strict=True)):
            for place, layer in enumerate(part.layers):
                is_first = place == 0
                layers.append(replace(
                    layer,
                    forward_s=factor * float(roof.forward_s[0, at]) if is_first else 0.0,
                    backward_s=float(roof.backward_s[0, at]) if is_first else 0.0,
                ))  # fmt: skip
        seen = replace(WORK, layers=tuple(layers))
        return unit_times(
            seen, work_units(seen), [CARD], BATCHES, PARAMETERS, host=host, gain=0.5
        )[0]  # fmt: skip

    alike = measured([3.0] * len(PARTS))
    np.testing.assert_allclose(alike.forward_s, even.forward_s, rtol=1e-6)
    first = measured([4.0, *[1.0] * (len(PARTS) - 1)])
    weights = even.forward_s * np.where(np.arange(len(PARTS)) == 0, 2.0, 1.0)
    expected = weights * (even.forward_s.sum(1) / weights.sum(1))[:, None]
    np.testing.assert_allclose(first.forward_s, expected, rtol=1e-6)
    np.testing.assert_allclose(first.backward_s, even.backward_s, rtol=1e-6)


def test_between_micro_batches_times_lie_on_lines_and_beyond_them_too() -> None:
    """Below the first they shrink with the micro-batch, but for what starting kernels takes."""
    made = UnitTimes(
        micro_batches=np.array([2.0, 4.0, 8.0]), optimizer_s=0.0, log_sd=0.0,
        forward_s=np.array([[1.0], [2.0], [6.0]]), backward_s=np.array([[3.0], [4.0], [5.0]]),
    )  # fmt: skip
    forward, backward = made.at([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0])
    np.testing.assert_allclose(forward[:, 0], [0.5, 1.0, 1.5, 2.0, 4.0, 6.0, 10.0])
    np.testing.assert_allclose(backward[:, 0], [1.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0])
    single = replace(made, micro_batches=np.array([2.0]), forward_s=np.array([[1.0]]),
                     backward_s=np.array([[3.0]]))  # fmt: skip
    assert [float(x[0]) for x in single.at(6.0)] == [3.0, 9.0]
    launched = replace(made, launch_s=(0.6, 1.0))
    assert [float(x[0]) for x in launched.at(1.0)] == pytest.approx([0.8, 2.0])
    assert [float(x[0]) for x in launched.at(3.0)] == [float(x[0]) for x in made.at(3.0)]


def test_a_transformer_is_known_by_its_width_and_its_blocks_output() -> None:
    found = transformer_blocks(WORK, PARTS)
    assert not isinstance(found, str)
    assert (found.blocks, found.hidden, found.tokens) == (3, 256, 32)
    assert found.widest_tp == 256 // 64
    assert found.degrees(8) == (1, 2, 4)
    assert found.degrees(3) == (1, 2)
    twelve = transformer_blocks(WORK, PARTS, heads=12)
    assert not isinstance(twelve, str)
    assert twelve.degrees(12) == (1, 2, 4)  # of 1, 2, 3, 4, 6, 12 those that divide 256
    assert transformer_blocks(WORK, PARTS[:1]) == "the recording has no layers"
    assert transformer_blocks(WORK, PARTS[:2]) == "no block of layers is repeated"


def test_loaders_stand_still_for_what_is_neither_computing_nor_a_full_core() -> None:
    """A sample takes c + d in a process: workers / (c + d) samples a second arrive."""

    def idle(**changes: float) -> float:
        usual = {"step_s": 1.0, "wait_s": 0.5, "cpu_s": 0.05, "samples": 8, "workers": 4,
                 "busy_cores": 1.0, "cores": 4.0}  # fmt: skip
        return idle_s_per_sample(**(usual | changes))  # type: ignore[arg-type]

    assert idle() == pytest.approx(4 * 1.0 / 8 - 0.05)
    assert idle(workers=0) == pytest.approx(0.5 / 8 - 0.05)
    assert idle(cpu_s=1.0) == 0.0
    assert idle(wait_s=0.05) == 0.0
    assert idle(wait_s=0.06) > 0.0
    assert idle(busy_cores=3.61) == 0.0
    assert idle(busy_cores=3.59) > 0.0
    assert idle(workers=0, busy_cores=4.0) > 0.0


def test_cores_needed_are_samples_times_their_work_at_the_targets_speed() -> None:
    np.testing.assert_array_equal(vcpus_needed([100, 101], 0.01, 20.0, 10.0), [2, 3])
    np.testing.assert_array_equal(vcpus_needed(100, 0.01, None, 10.0), 1)
    np.testing.assert_array_equal(relative_speed(20.0, [10.0, np.nan, 40.0]), [0.5, 1.0, 2.0])
