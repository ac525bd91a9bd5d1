"""Layer profiles are read as described jobs, and what cannot be is refused."""

from pathlib import Path

import pytest

from advisor.errors import ModelError
from advisor.lab.data import LAYERS
from advisor.lab.fit.described import layer_frame, layer_steps
from advisor.machines.devices import accelerator_devices, device_parameters, suite_device
from advisor.planners.step.device_rates import sustained_flop_per_s

HEADER = "source,model,gpu,seq,dtype,hidden,n_layers,params_per_layer,micro_batch,fwd_ms,bwd_ms\n"


def write(folder: Path, scale: float) -> Path:
    """Layers that run at exactly 80 % of the fp32 peak, times ``scale``."""
    lines = [HEADER]
    for gpu in ("a100x40", "v100x16"):
        device = suite_device(gpu)
        assert device is not None
        rate = 0.8 * (device.fp32_flop_per_s or 0.0)
        for micro in (1, 2, 4, 8):
            for hidden in (2048, 4096):
                weights = 12 * hidden**2
                # Fused and behind a mask attention computes half of its pairs, and the scores
                # of the backward pass again.
                pairs = (1 + 2.5) * 4 * micro * 512**2 / 2 * hidden
                flop = 3 * 2 * weights * micro * 512 + pairs
                ms = flop / rate * 1e3 * scale
                lines.append(
                    f"x,llama_{hidden},{gpu},512,float32,{hidden},1,{weights},{micro},"
                    f"{ms / 3},{2 * ms / 3}\n"
                )
    path = folder / LAYERS.tables["profiles"].published
    path.parent.mkdir(parents=True)
    path.write_text("".join(lines))
    return folder


def test_layers_are_described_with_the_operations_that_were_timed(tmp_path: Path) -> None:
    """The made-up times are 80 % of the peak by a formula of their own; so are the operators."""
    steps = list(layer_steps(layer_frame(write(tmp_path, 1.0))))
    assert len(steps) == 16
    for step in steps:
        flop = sum(o.flop for o in step.operators)
        share = flop / step.seconds / (step.device.fp32_flop_per_s or 1.0)
        # Activations and norms are some operations more than the products' 80 %.
        assert 0.8 <= share < 0.85
        assert not any(o.phase == "optimizer" for o in step.operators)


def test_times_in_the_wrong_unit_are_refused_with_the_row(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a100x40"):
        list(layer_steps(layer_frame(write(tmp_path, 1e-3))))


def test_a_board_that_lacks_power_sustains_less_of_its_peak() -> None:
    parameters, sheet = device_parameters(), accelerator_devices()
    share = {
        name: sustained_flop_per_s(sheet[name], "fp16", parameters)
        / (sheet[name].fp16_flop_per_s or 1.0)
        for name in ("T4", "A100-SXM4-40GB")
    }
    assert share["T4"] < 0.6 * share["A100-SXM4-40GB"]
