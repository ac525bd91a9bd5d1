"""Run a script and say what PyTorch allocated in one of its training steps.

python -m advisor.lab.experiments.allocated SCRIPT [ARGUMENT ...]

PyTorch's profiler follows every allocation and free of the CPU allocator from the script's first
line on (``profile_memory``). The step is the third of the optimizer that steps first, from the end
of the one before to its own end. What was there before training began and is not the model's (the
data set) would lie in host memory: it is not counted. Prints one JSON line.
"""

from __future__ import annotations

import contextlib
import gc
import json
import runpy
import sys
from pathlib import Path
from typing import Any

# Bytes of an allocation that nobody else makes: it marks a place in the order of events.
_MARK = 1_234_577
# The step that is looked at begins when the optimizer has stepped so often.
_BEGIN = 3


class _Enough(BaseException):
    """The step is over."""


class Window:
    """Marks the begin and the end of a step in the order of allocations."""

    def __init__(self) -> None:
        self.model: set[int] = set()
        self._first: Any = None
        self._steps = 0

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Count an optimizer's steps; a hook behind all of them."""
        self._first = self._first or optimizer
        if optimizer is not self._first:
            return
        self._steps += 1
        if self._steps == 1 or self._steps >= _BEGIN:
            _mark()
        if self._steps == _BEGIN:
            self.model = _model_storages()
        elif self._steps > _BEGIN:
            raise _Enough


def _mark() -> None:
    import torch

    torch.empty(_MARK, dtype=torch.uint8)


def _model_storages() -> set[int]:
    """Return where parameters, buffers, gradients and optimizer states lie."""
    import torch

    found: list[Any] = []
    for thing in gc.get_objects():
        if isinstance(thing, torch.nn.Module):
            found += [*thing.parameters(recurse=False), *thing.buffers(recurse=False)]
        elif isinstance(thing, torch.optim.Optimizer):
            found += [p for group in thing.param_groups for p in group["params"]]
            found += [v for s in thing.state.values() for v in s.values() if torch.is_tensor(v)]
    found += [t.grad for t in found if t.requires_grad and t.is_leaf and t.grad is not None]
    return {t.untyped_storage().data_ptr() for t in found}


def peak_bytes(events: list[tuple[int, int]], model: set[int]) -> int:
    """Return the most that was allocated between the last two marks, data sets left out.

    ``events``: address and bytes of every allocation, in order; negative where it is freed;
    ``model``: addresses that count though they were there before training began.
    """
    marks = [i for i, (_, size) in enumerate(events) if size == _MARK]
    if len(marks) < 3:
        raise ValueError(f"{len(marks)} marks among {len(events)} allocations")
    trained, begin, end = marks[0], marks[-2], marks[-1]
    live: dict[int, tuple[int, bool]] = {}
    now = peak = 0
    for i, (address, size) in enumerate(events[:end]):
        if size > 0:
            counts = i > trained or address in model
            live[address] = size, counts
            now += size if counts else 0
        elif (freed := live.pop(address, None)) is not None:
            now -= freed[0] if freed[1] else 0
        if i >= begin and abs(size) != _MARK:
            peak = max(peak, now)
    return peak


def _allocations(profile: Any) -> list[tuple[int, int]]:
    from torch._C._profiler import _EventType

    found: list[tuple[int, int, int]] = []
    stack = list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == _EventType.Allocation:
            found.append(
                (event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size)
            )
    found.sort(key=lambda row: row[0])
    return [(address, size) for _, address, size in found]


def main(words: list[str]) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    window = Window()
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    register_optimizer_step_post_hook(window.stepped)
    activities = [torch.profiler.ProfilerActivity.CPU]
    profile = torch.profiler.profile(activities=activities, profile_memory=True)
    with profile, contextlib.suppress(_Enough):
        runpy.run_path(words[0], run_name="__main__")
    peak = peak_bytes(_allocations(profile), window.model)
    sys.stdout.flush()
    print(json.dumps({"peak_bytes": peak}))


if __name__ == "__main__":
    main(sys.argv[1:])
