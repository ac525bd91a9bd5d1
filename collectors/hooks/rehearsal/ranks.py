"""One rank of many, in one process: torch's fake process group, and what goes around it.

A collective of a fake group returns at once, with results of the right shape. FSDP and DTensor run
unchanged on it. ``DistributedDataParallel`` does its work in C++, on real memory: it is stood in
for by its rule, gradients exchanged in buckets of 25 MiB as the backward pass makes them
(Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .mode import Rehearsal
from .values import Notes

_MIB = 1 << 20


def set_place(ranks: int, rank: int, per_node: int) -> None:
    """Tell the script by the usual variables which rank it is; a launcher's own words stand."""
    if ranks < 2 or "RANK" in os.environ:
        return
    said = {
        "RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % max(per_node, 1),
        "LOCAL_WORLD_SIZE": min(ranks, per_node), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29555, "GROUP_RANK": rank // max(per_node, 1),
    }  # fmt: skip
    for name, value in said.items():
        os.environ.setdefault(name, str(value))


def collectives() -> Any:
    """Return the operators that exchange bytes; none in a torch that does not list them."""
    try:
        from torch.distributed._tools.fake_collectives import collective_ops
    except ImportError:
        return ()
    return collective_ops


def pretend(mode: Rehearsal, notes: Notes) -> None:
    """Have process groups be fake, and spawn and data parallelism stay in this process."""
    import torch.distributed as distributed
    import torch.multiprocessing as processes

    layers: Any = nn
    layers.DataParallel = layers.parallel.DataParallel = _one_device(notes)
    if not distributed.is_available():
        return
    _process_groups(mode, notes)
    _spawn(processes)
    wrapper = _data_parallel(mode)
    for module in (layers.parallel, layers.parallel.distributed):
        module.DistributedDataParallel = wrapper


def _process_groups(mode: Rehearsal, notes: Notes) -> None:
    import torch.distributed.device_mesh as mesh
    from torch.distributed import distributed_c10d as c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = c10d.init_process_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
        rank: int = -1, store: Any = None, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", 1))
        mine = rank if rank >= 0 else int(os.environ.get("RANK", 0))
        original("fake", store=FakeStore(), rank=mine, world_size=size)
        _seeds_are_each_ranks()
        _shapes_are_asked_aside(mode)
        mode.collectives = collectives()
        notes.add("process group %s of %d: one rank runs" % (backend or "", size))

    def gather_objects(found: list[Any], obj: Any, group: Any = None) -> None:
        found[:] = [obj] * len(found)  # everybody says what this rank says

    answers = {
        "init_process_group": init_process_group,
        "is_nccl_available": lambda: True,
        "get_backend": lambda group=None: "nccl",
        "all_gather_object": gather_objects,
        "broadcast_object_list": lambda *_, **__: None,
        "barrier": lambda *_, **__: None,
        "monitored_barrier": lambda *_, **__: None,
    }
    for name, answer in answers.items():
        for module in (c10d, torch.distributed):
            setattr(module, name, answer)
    owner: Any = mesh
    owner.init_process_group = init_process_group


def _seeds_are_each_ranks() -> None:
    """Have distributed tensors not agree on random numbers, which asks the device's generator.

    Only once there is a group: importing them takes half a second.
    """
    with contextlib.suppress(ImportError, AttributeError):
        import torch.distributed.tensor._dispatch as dispatch
        import torch.distributed.tensor._random as random

        modules: tuple[Any, ...] = (random, dispatch)
        for module in modules:
            module.is_rng_supported_mesh = lambda mesh: False


def _shapes_are_asked_aside(mode: Rehearsal) -> None:
    """Have what distributed tensors ask of whole shapes be neither operators nor memory."""
    with contextlib.suppress(ImportError):
        from torch.distributed.tensor._sharding_prop import ShardingPropagator

        kind: Any = ShardingPropagator
        for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
            original = getattr(kind, name, None)
            if original is not None and not hasattr(original, "cache_info"):
                setattr(kind, name, _aside(mode, original))


def _aside(mode: Rehearsal, original: Any) -> Any:
    def asked(*args: Any, **kwargs: Any) -> Any:
        was_on, mode.is_on = mode.is_on, False
        try:
            return original(*args, **kwargs)
        finally:
            mode.is_on = was_on

    return asked


def _spawn(processes: Any) -> None:
    """Have ``torch.multiprocessing.spawn`` run the one rank here."""
    module: Any = sys.modules["torch.multiprocessing.spawn"]

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        fn(int(os.environ.get("LOCAL_RANK", 0)) % max(nprocs, 1), *args)

    module.spawn = processes.spawn = spawn


def _one_device(notes: Notes) -> Any:
    class DataParallel(nn.Module):
        """All of a batch on one device: what it does on several is not known here."""

        def __init__(self, module: Any, *_: Any, **__: Any) -> None:
            super().__init__()
            self.module = module
            notes.add("DataParallel: the batch stays on one device")

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Run the module."""
            return self.module(*args, **kwargs)

    return DataParallel


def _data_parallel(mode: Rehearsal) -> Any:
    class DistributedDataParallel(nn.Module):
        """Gradients in buckets, counted as they would be exchanged."""

        def __init__(self, module: Any, *_: Any, bucket_cap_mb: Any = 25, **__: Any) -> None:
            super().__init__()
            self.module = module
            self.require_backward_grad_sync = True
            self._most = int((bucket_cap_mb or 25) * _MIB)
            self._held = 0
            self._is_queued = False
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._made)

        def _made(self, parameter: Any) -> None:
            if not self.require_backward_grad_sync:
                return
            gradient = parameter.grad
            self._held += gradient.numel() * gradient.element_size()
            if not self._is_queued:
                self._is_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._end)
            if self._held >= self._most:
                self._send()

        def _send(self) -> None:
            if self._held:
                mode.count("allreduce_", self._held)
            self._held = 0

        def _end(self) -> None:
            self._is_queued = False
            self._send()

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Run the module."""
            return self.module(*args, **kwargs)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            """Keep the gradients here for as long as it is open."""
            self.require_backward_grad_sync = False
            try:
                yield
            finally:
                self.require_backward_grad_sync = True

        @contextlib.contextmanager
        def join(self, *_: Any, **__: Any) -> Iterator[None]:
            """Let unequal inputs be: one rank runs."""
            yield

        def register_comm_hook(self, *_: Any) -> None:
            """Take no notice: how gradients are packed is the hook's."""

        def _get_ddp_logging_data(self) -> dict[str, Any]:
            return {}

        def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
            return None

    return DistributedDataParallel
