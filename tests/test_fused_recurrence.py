"""Recurrent layers recorded step by step on a processor, told for accelerators that fuse them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from collecting import hooked
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from advisor.collectors.derive.deep_step import deep_step
from advisor.jobs.recorded_work import recorded_work
from advisor.machines.devices import accelerator_devices, device_parameters
from advisor.planners.core.nouns import Work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import fused_calls

STEPS, LAYERS = 12, 2


class ByHand(nn.Module):
    """A cell called in Python's loop: nothing knows that it recurs."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(x.shape[0], 16)
        for step in x.unbind(1):
            hidden = self.cell(step, hidden)
        return hidden


def work_of(folder: Path, module: nn.Module) -> Work:
    folder.mkdir()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with hooked(folder) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            out = module(torch.randn(4, STEPS, 16, requires_grad=True))
            (out[0] if isinstance(out, tuple) else out).square().mean().backward()
            optimizer.step()
        deep = deep_step([hooks.deep()], None)
    assert deep is not None
    return recorded_work(deep, None)


def calls(work: Work, phase: str) -> tuple[float, float]:
    """Return the calls of a pass on a processor and on an accelerator."""
    made = work.operators
    rows = made.phase == phase
    return made.count[rows].sum(), made.kernels[rows].sum()


@pytest.mark.parametrize(("kind", "fewer"), [(nn.GRU, 2.0), (nn.RNN, 1.3)])
def test_a_layers_time_steps_take_two_kernels_each_on_an_accelerator(
    tmp_path: Path, kind: type[nn.Module], fewer: float
) -> None:
    """As an LSTM's do, which oneDNN records as one call."""
    work = work_of(tmp_path / "one", kind(16, 16, num_layers=LAYERS, batch_first=True))
    lstm = work_of(tmp_path / "lstm", nn.LSTM(16, 16, num_layers=LAYERS, batch_first=True))
    t4 = accelerator_devices()["T4"]
    for phase in ("forward", "backward"):
        here, there = calls(work, phase)
        few = 2 * STEPS * LAYERS
        assert few <= there <= 1.5 * few + 20  # with the loss, and the products of the input
        assert here > fewer * there
        assert calls(lstm, phase)[1] == pytest.approx(there, abs=0.35 * few)
    (one,), (other,) = (
        step_time(w, [t4], [w.micro_batch], device_parameters()).micro_batch_s
        for w in (work, lstm)
    )
    assert 0.5 < one[0] / other[0] < 1.5


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_librarys_time_steps_are_started_as_cheaply_as_the_engines(
    tmp_path: Path, kind: type[nn.Module]
) -> None:
    """A host so slow that nothing else counts: Python calls the layer, not its time steps."""
    call_s = 1.0
    work = work_of(tmp_path / "one", kind(16, 16, num_layers=LAYERS, batch_first=True))
    work = replace(work, call_s=call_s)
    parameters = device_parameters()
    found = step_time(work, [accelerator_devices()["T4"]], [work.micro_batch], parameters)
    made = work.operators
    rows = made.phase == "forward"
    inside = made.kernels[rows & made.is_recurrent].sum()
    assert inside == pytest.approx(2 * STEPS * LAYERS, abs=2 * LAYERS)
    started = made.kernels[rows].sum() - inside
    expected = call_s * (started + parameters.engine_call_fraction * inside)
    assert found.micro_batch_s[0, 0] - found.backward_s[0, 0] == pytest.approx(expected, rel=1e-6)


def test_a_loop_over_cells_is_not_fused(tmp_path: Path) -> None:
    work = work_of(tmp_path / "loop", ByHand())
    for phase in ("forward", "backward"):
        here, there = calls(work, phase)
        assert here == there
    assert not work.operators.is_recurrent.any()


@given(st.floats(1, 1e6), st.floats(0, 1))
def test_fusing_never_makes_more_calls(recorded: float, share: float) -> None:
    found = fused_calls({"forward": recorded, "backward": recorded}, {"forward": share * recorded})
    assert set(found) <= {"forward"}
    assert all(0 < one <= 1 for one in found.values())
    assert fused_calls({}, {}) == {}
