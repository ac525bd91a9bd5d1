"""Run the lines printed for recorded scripts on four processes of this machine's CPU.

Started by ``torchrun`` from ``test_launch_recorded``: every layout's ``parallel.py`` is applied to
a small model, one step is taken, and its gradients are compared with those of one process. Prints
one line of JSON a layout.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.estimate.launch.recorded_script import parallel_file
from advisor.planners.core.nouns import Layer, Layout
from advisor.planners.step.model_units import Unit

BLOCKS, WIDTH = 4, 32


class Block(nn.Module):
    """Half a transformer block: normalisation, up, down."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the block's output."""
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Net(nn.Module):
    """Blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the head's output."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def parts() -> list[Unit]:
    """Return the model's units as a recording names them."""
    kinds = {"norm": "LayerNorm", "fc1": "Linear", "fc2": "Linear"}
    blocks = [
        Unit(
            name=f"blocks.{i}",
            is_block=True,
            layers=tuple(
                Layer(name=f"blocks.{i}.{name}", parameters=1, kind=kind)
                for name, kind in kinds.items()
            ),
        )
        for i in range(BLOCKS)
    ]
    head = Layer(name="head", parameters=1, kind="Linear")
    return [*blocks, Unit(name="head", layers=(head,))]


LAYOUTS: list[tuple[Layout, tuple[int, ...]]] = [
    (Layout(dp=4), ()),
    (Layout(dp=4, zero_stage=1), ()),
    (Layout(dp=4, zero_stage=3, recompute="full"), ()),
    (Layout(dp=4, zero_stage=3, shard_group=2), ()),
    (Layout(dp=4, zero_stage=3, offload=frozenset({"optimizer", "parameters"})), ()),
    (Layout(dp=4, offload=frozenset({"activations"})), ()),
    (Layout(dp=2, tp=2), ()),
    (Layout(dp=2, tp=2, zero_stage=3), ()),
    (Layout(tp=4), ()),
    (Layout(dp=2, pp=2, accumulation_steps=4), (2, 3)),
    (Layout(dp=2, pp=2, accumulation_steps=4, zero_stage=1), (2, 3)),
    (Layout(pp=4, accumulation_steps=4, recompute="full"), (1, 1, 1, 2)),
    (Layout(pp=4, accumulation_steps=4, schedule="gpipe"), (1, 1, 1, 2)),
]


def on_cpu(text: str) -> str:
    """Return the lines for this machine: no CUDA, no pinned memory, one process group for all."""
    text = text.replace('"cuda"', '"cpu"').replace("pin_memory=True", "pin_memory=False")
    text = text.replace("CPUOffloadPolicy()", "CPUOffloadPolicy(pin_memory=False)")
    return text.replace("dist.init_process_group()\n", "")


def worst_difference(layout: Layout, stages: tuple[int, ...]) -> float:
    """Return the largest difference of a gradient from that of one process."""
    torch.manual_seed(1)
    x, y = torch.randn(8, WIDTH), torch.randn(8, 8)
    torch.manual_seed(0)
    alone, model = Net(), Net()
    model.load_state_dict(alone.state_dict())
    nn.functional.mse_loss(alone(x), y).backward()  # type: ignore[no-untyped-call]
    scope: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "one_micro_batch": x[:2],
        "device": torch.device("cpu"),
        "loss": nn.functional.mse_loss,
    }
    exec(compile(on_cpu(parallel_file(parts(), layout, stages)), "parallel.py", "exec"), scope)
    if layout.pp > 1:
        place = scope["place"]
        inputs = (x,) if place == 0 else ()
        targets = {"target": y, "losses": []} if place == layout.pp - 1 else {}
        scope["schedule"].step(*inputs, **targets)
    else:
        out = scope["model"](x)
        nn.functional.mse_loss(whole(out), y).backward()  # type: ignore[no-untyped-call]
    if layout.zero_stage == 1:
        scope["optimizer"].step()
    wanted = {name: p.grad for name, p in alone.named_parameters()}
    found = {plain(n): whole(p.grad) for n, p in scope["model"].named_parameters()}
    return max(float((found[n] - wanted[n]).abs().max()) for n in found)


def plain(name: str) -> str:
    """Return a parameter's name without those of the wrappers."""
    return name.replace("_checkpoint_wrapped_module.", "").replace("module.", "")


def whole(tensor: Any) -> Any:
    """Return a sharded tensor's value."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main() -> None:
    """Try all layouts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for layout, stages in LAYOUTS:
        try:
            found: dict[str, Any] = {"worst": worst_difference(layout, stages)}
        except Exception as error:
            found = {"error": repr(error)[:300]}
        if os.environ["RANK"] == "0":
            sys.stdout.write(json.dumps({"layout": str(layout), **found}) + "\n")
            sys.stdout.flush()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
