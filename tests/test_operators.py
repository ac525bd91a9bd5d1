"""Every operator that PyTorch's training steps are made of finds its class."""

from dataclasses import replace
from pathlib import Path

import pytest
from collecting import hooked
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive.deep_step import deep_step
from advisor.jobs.recorded_work import recorded_work
from advisor.machines.devices import accelerator_devices, device_parameters
from advisor.planners.core.nouns import Work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import kernels_in_call, kernels_of_layers, operator_kind
from advisor.planners.step.ledger import over_lists

CLASSES = {
    "matmul": "mm addmm bmm.default baddbmm linear",
    "convolution": "convolution convolution_backward cudnn_convolution mkldnn_convolution",
    "attention": "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention",
    "recurrent": "lstm _thnn_fused_lstm_cell mkldnn_rnn_layer",
    "normalisation": "native_layer_norm native_batch_norm_backward native_group_norm",
    "elementwise": "add.Tensor add_ mul gelu_backward relu threshold_backward native_dropout tanh",
    "reduction": "_softmax _log_softmax_backward_data max_pool2d_with_indices sum.dim_IntList "
    "mean nll_loss_forward avg_pool2d_backward",
    "embedding": "embedding embedding_dense_backward index.Tensor gather",
    "copy": "copy_ _to_copy cat zeros_like clone",
    "optimizer": "_foreach_addcdiv_.ScalarList _fused_adamw_ addcdiv_ _foreach_add_.List",
    "other": "a_strange_one",
}


@pytest.mark.parametrize(
    ("name", "kind"), [(n, kind) for kind, names in CLASSES.items() for n in names.split()]
)
@pytest.mark.parametrize("prefix", ["", "aten::"])
def test_framework_operators_find_their_class(prefix: str, name: str, kind: str) -> None:
    assert operator_kind(prefix + name) == kind


def recurrent_step(folder: Path, steps: int) -> Work:
    """Return what one step of a small language model takes, as it is recorded here."""
    import torch

    folder.mkdir()
    layer, head = torch.nn.LSTM(16, 16, num_layers=2), torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)
    with hooked(folder) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            head(layer(torch.randn(steps, 2, 16))[0]).sum().backward()
            optimizer.step()
        deep = deep_step([hooks.deep()], None)
    assert deep is not None
    return recorded_work(deep, None)


def test_a_recurrent_layer_takes_no_less_than_its_time_steps_one_after_another(
    tmp_path: Path,
) -> None:
    parameters, sheet = device_parameters(), accelerator_devices()
    works = {steps: recurrent_step(tmp_path / str(steps), steps) for steps in (10, 40)}
    for name in ("V100-SXM2-16GB", "H100-SXM5-80GB"):
        short, long = (
            step_time(works[steps], [sheet[name]], [works[steps].micro_batch], parameters)
            for steps in (10, 40)
        )
        # Two layers, forward and backward, each a product and the gates for every time step more.
        least_s = 2 * 2 * 2 * 30 * parameters.latency_s["gpu"]
        assert float(long.micro_batch_s[0, 0] - short.micro_batch_s[0, 0]) > least_s


def test_a_call_is_one_kernel_unless_it_is_a_recurrence() -> None:
    assert kernels_in_call("aten::mm", "35x20x128,35x128x20") == 1
    assert kernels_in_call("aten::mkldnn_rnn_layer_backward", "7x1x2,8x2") == 14
    assert kernels_in_call("aten::mkldnn_rnn_layer", "140x128,512x128") == 1  # a packed batch


@given(
    layers=st.integers(1, 5), steps=st.integers(1, 99), batch=st.integers(1, 99),
    wide=st.integers(1, 512), hidden=st.integers(1, 512), is_batch_first=st.booleans(),
)  # fmt: skip
def test_a_call_for_all_layers_starts_what_the_layers_do(
    layers: int, steps: int, batch: int, wide: int, hidden: int, is_batch_first: bool
) -> None:
    """As cuDNN has it, in the first eight operands that a recording keeps."""
    data = f"{batch}x{steps}x{wide}" if is_batch_first else f"{steps}x{batch}x{wide}"
    four = 4 * hidden
    operands, flop, alone = [data], 0.0, 0.0
    for number in range(layers):
        inside = hidden if number else wide
        operands += [f"{four}x{inside}", f"{four}x{hidden}", str(four), str(four)]
        flop += 2 * steps * batch * four * (inside + hidden)
        one = f"{steps}x{batch}x{inside},{four}x{inside},{four}x{hidden}"
        alone += kernels_in_call("aten::mkldnn_rnn_layer", one)
    operands += [f"{layers}x{batch}x{hidden}"] * 2
    assert kernels_of_layers(",".join(operands[:8]), flop, batch) == alone
    packed = [f"{steps * batch}x{wide}", *operands[1:]]
    assert kernels_of_layers(",".join(packed[:8]), flop, batch) == 1
    assert kernels_of_layers("", 0.0, batch) == 1


def test_an_update_traced_on_a_cpu_runs_over_lists_on_accelerators(tmp_path: Path) -> None:
    """PyTorch's own optimizers do, by themselves; here they go from tensor to tensor."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(30)))
    optimizer = torch.optim.AdamW(model.parameters())
    with hooked(tmp_path) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        deep = deep_step([hooks.deep()], None)
    assert deep is not None
    known, strange = (recorded_work(deep, None, [one]) for one in ("AdamW", "Lion"))
    sheet, parameters = accelerator_devices(), device_parameters()
    devices = [sheet["V100-SXM2-16GB"], replace(sheet["V100-SXM2-16GB"], kind="cpu", cores=8)]
    listed, single = (step_time(one, devices, [4], parameters) for one in (known, strange))
    assert listed.optimizer_s[0] < 0.1 * single.optimizer_s[0]
    assert listed.optimizer_s[1] == single.optimizer_s[1]
    assert (listed.micro_batch_s == single.micro_batch_s).all()


@given(st.dictionaries(st.text(min_size=1), st.floats(1.0, 1e6), min_size=1, max_size=20))
def test_lists_save_calls_and_never_the_last(calls: dict[str, float]) -> None:
    shrinks = over_lists(calls)
    for name, count in calls.items():
        assert shrinks[name] <= 1.0
        assert shrinks[name] * count >= 1.0 - 1e-9
