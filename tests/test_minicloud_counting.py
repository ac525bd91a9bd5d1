"""What a step computes, against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.lab.minicloud.node import count_step, operator_class

B = 4


def count(model: nn.Module, inputs: torch.Tensor) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss() -> torch.Tensor:
        out = model(inputs)
        total: torch.Tensor = (out[0] if isinstance(out, tuple) else out).square().mean()
        return total

    return count_step(model, optimizer, loss)


def flop(counts: dict[str, Any], phase: str) -> float:
    return float(sum(entry[1] for entry in counts["classes"][phase].values()))


def test_a_linear_layer_costs_two_flop_a_weight_and_sample() -> None:
    counts = count(nn.Linear(32, 16, bias=False), torch.randn(B, 32))
    assert flop(counts, "forward") == 2 * B * 32 * 16
    assert flop(counts, "backward") == 2 * B * 32 * 16  # the inputs need no gradient


def test_a_hidden_linear_layer_costs_twice_as_much_backward() -> None:
    inputs = torch.randn(B, 32, requires_grad=True)
    counts = count(nn.Linear(32, 16, bias=False), inputs)
    assert flop(counts, "backward") == 2 * flop(counts, "forward")


@pytest.mark.parametrize("groups", [1, 8])
def test_groups_divide_a_convolution_forward_and_backward(groups: int) -> None:
    inputs = torch.randn(B, 8, 10, 10, requires_grad=True)
    counts = count(nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False), inputs)
    forward = 2 * B * 10 * 10 * 8 * (8 // groups) * 9
    assert flop(counts, "forward") == forward
    assert flop(counts, "backward") == 2 * forward


def test_a_transposed_convolution_is_counted_from_its_inputs() -> None:
    inputs = torch.randn(B, 6, 5, 5, requires_grad=True)
    counts = count(nn.ConvTranspose2d(6, 3, 2, stride=2, bias=False), inputs)
    forward = 2 * B * 25 * 6 * 3 * 4
    assert flop(counts, "forward") == forward
    assert flop(counts, "backward") == 2 * forward


def test_an_lstm_is_counted_though_torch_counts_nothing() -> None:
    hidden, inputs, steps = 12, 7, 9
    x = torch.randn(B, steps, inputs, requires_grad=True)
    counts = count(nn.LSTM(inputs, hidden, batch_first=True), x)
    forward = 2 * B * steps * 4 * hidden * (inputs + hidden)
    assert flop(counts, "forward") == forward
    assert flop(counts, "backward") == 2 * forward


def test_saved_bytes_are_activations_without_parameters() -> None:
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 8, bias=False))
    counts = count(model, torch.randn(B, 32))
    activations = B * 32 + B * 64 + B * 8  # input, ReLU's output, the output that is squared
    assert counts["saved_bytes"] == 4 * activations


def test_optimizer_state_is_adams_two_moments_and_its_step() -> None:
    model = nn.Linear(10, 10)
    x = torch.randn(B, 10)
    optimizer = torch.optim.Adam(model.parameters())
    counts = count_step(model, optimizer, lambda: model(x).square().mean())
    assert counts["optimizer_state_bytes"] == 2 * counts["parameter_bytes"] + 2 * 4


def test_counting_changes_no_result() -> None:
    x = torch.randn(B, 10)
    results = []
    for is_counted in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(10, 10)
        optimizer = torch.optim.Adam(model.parameters())
        if is_counted:
            count_step(model, optimizer, lambda m=model: m(x).square().mean())  # type: ignore[misc]
        else:
            model(x).square().mean().backward()
            optimizer.step()
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mm", "matmul"), ("addmm", "matmul"), ("convolution_backward", "convolution"),
        ("mkldnn_rnn_layer", "recurrent"), ("native_layer_norm", "normalisation"),
        ("add_", "elementwise"), ("max_pool2d_with_indices", "reduction"),
        ("embedding_dense_backward", "embedding"), ("_log_softmax", "reduction"),
        ("_scaled_dot_product_flash_attention_for_cpu", "attention"),
    ],
)  # fmt: skip
def test_operators_fall_into_classes_by_name(name: str, kind: str) -> None:
    assert operator_class(name) == kind
