"""The traced step: it changes nothing, and what it says adds up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import hooked
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from advisor.collectors.derive.deep_step import deep_step
from advisor.collectors.format.recording import DeepStep
from advisor.collectors.hooks.trace.live_memory import LookedAtMemory
from advisor.collectors.hooks.trace.storages import key_of


def step_memory_bytes(deep: DeepStep, samples: float) -> float:
    """Return the peak of a step over so many samples: the largest of its moments, grown."""
    ratio = samples * deep.micro_batches / deep.samples
    return max(fixed + growing * ratio for fixed, growing, _ in deep.memory_frontier)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.dropout(self.features(x).flatten(1)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(1)[:, :12].abs().mul(10).long() % 50
        out: torch.Tensor = self.head(self.lstm(self.embedding(tokens))[0][:, -1])
        return out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(1)[:, :96].reshape(-1, 8, 12)
        out: torch.Tensor = self.head(self.encoder(tokens).mean(1))
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(192, 64), nn.GELU(), nn.Dropout(0.2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.first, x.flatten(1), use_reentrant=False)
        out: torch.Tensor = self.head(hidden)
        return out


def train(kind: Callable[[], nn.Module], precision: str, steps: int = 12) -> bytes:
    """Train from a fixed seed and return every parameter's and buffer's bytes."""
    torch.manual_seed(7)
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    context = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
    for _ in range(steps):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
        optimizer.zero_grad()
        with context:
            loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    state = [tensor.detach().contiguous() for tensor in model.state_dict().values()]
    return b"".join(
        tensor.view(torch.uint8).numpy().tobytes() if tensor.dim() else tensor.numpy().tobytes()
        for tensor in state
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [Convolutional, Recurrent, Attending, Checkpointed])
def test_parameters_are_bit_identical_with_and_without_tracing(
    tmp_path: Path, kind: Callable[[], nn.Module], precision: str
) -> None:
    try:
        plain = train(kind, precision)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("oneDNN has no such kernel for this processor, with or without tracing")
    with hooked(tmp_path) as hooks:
        seen = train(kind, precision)
        events = hooks.events
    assert len(events.facts["deep_step"]) >= 2
    assert "failure" not in events.facts
    assert seen == plain
    assert events.facts["deep_step"][0]["precision"] == precision


def one_step(tmp_path: Path, step: Callable[[], None], steps: int = 4) -> dict[str, Any]:
    with hooked(tmp_path) as hooks:
        for _ in range(steps):
            step()
        return hooks.deep()


def test_saved_activations_are_what_the_layers_keep(tmp_path: Path) -> None:
    """A ReLU network keeps every layer's output but no pre-activation twice."""
    batch, width = 64, 256
    layers = [nn.Sequential(nn.Linear(width, width, bias=False), nn.Sigmoid()) for _ in range(5)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    facts = one_step(tmp_path, step)
    # A sigmoid keeps its output, which is the next layer's input; products keep their inputs.
    # The loss itself is alive too.
    assert facts["saved_bytes"] == 5 * batch * width * 4 + 4
    assert sum(layer["saved_bytes"] for layer in facts["layers"]) == facts["saved_bytes"]


def traced_memory(folder: Path, model: nn.Module, batch: int, width: int) -> DeepStep:
    """Return a traced step of Adam over a batch of that size."""
    folder.mkdir()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(batch, width)).square().mean().backward()
        optimizer.step()

    deep = deep_step([one_step(folder, step)], None)
    assert deep is not None
    return deep


def test_the_buffers_of_what_learns_are_counted_once(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(128)  # mean, variance: 128 floats each; batches: one int64
    model = nn.Sequential(nn.Linear(128, 128), norm, nn.Linear(128, 128))
    frozen = nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128)).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        model(frozen(torch.randn(8, 128))).square().mean().backward()
        optimizer.step()

    deep = deep_step([one_step(tmp_path, step)], None)
    assert deep is not None
    assert deep.buffer_bytes == 2 * 128 * 4 + 8


def test_the_peak_is_at_least_the_model_with_its_gradients_and_states(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(4)])
    deep = traced_memory(tmp_path / "run", model, 8, 128)
    parameters = 4 * 128 * 128 * 4
    assert deep.parameter_bytes == deep.gradient_bytes == parameters
    assert deep.optimizer_state_bytes == 2 * parameters + 4 * 4  # two moments and the step counts
    # Adam makes up to three temporaries of one layer's size.
    most_fixed = max(fixed for fixed, _, _ in deep.memory_frontier)
    assert 4 * parameters <= most_fixed <= 4 * parameters * 1.2
    assert deep.peak_bytes is not None
    assert deep.peak_bytes >= most_fixed


@pytest.mark.parametrize("kind", ["deep", "wide"])
def test_peak_memory_follows_the_batch(tmp_path: Path, kind: str) -> None:
    """What one batch size shows predicts eight times the batch; a wide model's does not grow."""
    width, layers = (64, 24) if kind == "deep" else (768, 2)
    parts = [nn.Sequential(nn.Linear(width, width), nn.Sigmoid()) for _ in range(layers)]
    model = nn.Sequential(*parts)
    small, large = (32, 256) if kind == "deep" else (4, 32)
    first = traced_memory(tmp_path / "small", model, small, width)
    second = traced_memory(tmp_path / "large", model, large, width)
    assert second.peak_bytes is not None
    predicted = step_memory_bytes(first, large)
    assert predicted == pytest.approx(second.peak_bytes, rel=0.05)
    assert step_memory_bytes(first, small) == first.peak_bytes


def test_accumulation_is_one_step_of_several_micro_batches(tmp_path: Path) -> None:
    model = nn.Linear(16, 4)
    loader = DataLoader(TensorDataset(torch.randn(128, 16)), batch_size=8)
    with hooked(tmp_path) as hooks:
        optimizer = torch.optim.Adam(model.parameters())
        for number, (x,) in enumerate(loader):
            model(x).sum().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        facts, events = hooks.deep(), hooks.events
    assert (facts["samples"], facts["micro_batches"]) == (32, 4)
    forward = sum(r["flop"] for r in facts["operators"] if r["name"] == "aten::addmm")
    assert forward == 2 * 32 * 16 * 4
    assert events.backwards == 4 * events.intervals
    assert events.completed == 4


def test_gradients_and_optimizer_state_do_not_grow_with_the_batch(tmp_path: Path) -> None:
    model = nn.Linear(64, 32, bias=False)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(16, 64)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    facts = one_step(tmp_path, step)
    for row in facts["operators"]:
        if row["phase"] == "optimizer":
            assert row["fixed_bytes"] == row["bytes"], row
    gradient = next(
        r for r in facts["operators"] if r["name"] == "aten::mm" and r["phase"] == "backward"
    )
    assert gradient["fixed_bytes"] == 64 * 32 * 4


def test_recomputed_activations_are_flagged_and_not_kept(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(32, 64, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        optimizer.step()

    facts = one_step(tmp_path, step)
    assert "activations are recomputed in the backward pass" in facts["flags"]
    assert facts["saved_bytes"] < 32 * 256 * 4


def test_several_optimizers_make_one_step(tmp_path: Path) -> None:
    generator, critic = nn.Linear(8, 16), nn.Linear(16, 1)
    with hooked(tmp_path) as hooks:
        steps = {model: torch.optim.Adam(model.parameters()) for model in (generator, critic)}
        for _ in range(8):
            for _ in range(3):
                steps[critic].zero_grad()
                critic(generator(torch.randn(4, 8)).detach()).mean().backward()
                steps[critic].step()
            steps[generator].zero_grad()
            critic(generator(torch.randn(4, 8))).mean().backward()
            steps[generator].step()
        events, facts = hooks.events, hooks.deep()
    assert events.completed == 8
    assert facts["parameters"] == 8 * 16 + 16 + 16 + 1
    assert facts["micro_batches"] == 4


def test_a_loop_without_optimizer_and_modules_is_stepped_by_its_backward_passes(
    tmp_path: Path,
) -> None:
    weight = torch.randn(20, 5, requires_grad=True)

    def step() -> None:
        loss = (torch.randn(12, 20) @ weight).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)
        weight.grad = None

    facts = one_step(tmp_path, step, steps=6)
    assert facts["parameters"] == 100
    assert facts["samples"] == 12
    assert any("samples guessed" in flag for flag in facts["flags"])


def test_frozen_parameters_are_counted_apart(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()

    facts = one_step(tmp_path, step)
    assert facts["parameters"] == 32 * 32 + 32 + 32 * 4 + 4
    assert facts["trainable_parameters"] == 32 * 4 + 4
    assert facts["flags"] == []


def test_a_scripts_own_dispatch_mode_is_left_alone(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    with hooked(tmp_path) as hooks:
        for _ in range(12):
            with FlopCounterMode(display=False) as counter:
                optimizer.zero_grad()
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
            counts.append(counter.get_total_flops())
        events = hooks.events
    assert len(set(counts)) == 1
    assert events.completed == 12
    assert "deep_step" not in events.facts


def test_layer_times_and_operators_survive_the_way_into_a_recording(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hooked(tmp_path) as hooks:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
        facts = hooks.events.facts["deep_step"]
    deep = deep_step(facts, 0.5)
    assert deep is not None
    assert sum(deep.operators["time_s"]) == pytest.approx(0.5)
    assert deep.layers["name"] == ("0", "1", "2")
    assert deep_step([], None) is None


def test_a_fork_leaves_the_parents_trace_alone(tmp_path: Path) -> None:
    """DataLoader workers are forked in the middle of a traced step."""
    model = nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with hooked(tmp_path) as hooks:
        for _ in range(6):
            loader = DataLoader(TensorDataset(torch.randn(32, 16)), batch_size=16, num_workers=1)
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        events = hooks.events
    assert events.completed == 12
    assert "failure" not in events.facts
    assert len(list(tmp_path.glob("ev-*.bin"))) == 1


def test_what_a_loop_still_holds_lives_until_it_is_made_anew() -> None:
    """``output = model(x)``: the former output is there until the new one has its name."""
    model, storages = torch.empty(1000), LookedAtMemory()
    storages.add_model([model])
    made = [torch.empty(n, dtype=torch.uint8) for n in (10, 500, 20)]
    for tensor in made:
        storages.add(tensor)
        storages.operator_ended()
    output = made[1]
    del made, tensor
    storages.operator_ended()
    storages.operator_ended()
    moments, _ = storages.frontiers({key_of(model)})
    # When the new one is made: both, and the first of the three.
    assert max(growing for _, growing, _ in moments) == 10 + 2 * output.nbytes
    assert {fixed for fixed, _, _ in moments} == {model.nbytes}
    assert max(blocks for _, _, blocks in moments) == 4


@pytest.mark.parametrize("is_slow", [False, True])
def test_of_a_slow_script_the_second_step_is_traced(tmp_path: Path, is_slow: bool) -> None:
    """Of others the third: the first two make the optimizer's state and compile."""
    with hooked(tmp_path) as hooks:
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # As if the first step had taken a minute, or none at all.
        hooks.session.optimizer_made_ns += -60_000_000_000 if is_slow else 3600_000_000_000
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        traced = [fact["number"] for fact in hooks.events.facts["deep_step"]]
    assert traced[0] == (2 if is_slow else 3)
