"""``torch.cuda`` as a machine with accelerators would answer; nothing reaches a device.

The devices are what the recording was asked for (``--as 8xH100``): their number, name, memory and
compute capability, by which scripts branch (bf16, flash attention).
"""

from __future__ import annotations

import collections
import contextlib
import time
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from ..trace.live_memory import LiveMemory

_current = [0]


def _said(answer: Any) -> Callable[..., Any]:
    """Return a function that always gives one answer."""
    return lambda *_, **__: answer


# Answers of ``torch.cuda`` that are always the same. The generators are the processor's, for data.
_ANSWERS: tuple[tuple[Any, str], ...] = (
    (None, "_lazy_init synchronize empty_cache ipc_collect init set_sync_debug_mode _sleep cudart "
           "reset_accumulated_memory_stats set_per_process_memory_fraction manual_seed "
           "manual_seed_all seed seed_all set_rng_state set_rng_state_all"),
    (True, "is_available is_initialized can_device_access_peer is_bf16_supported "
           "is_tf32_supported"),
    (False, "is_current_stream_capturing"),
    (0, "utilization temperature power_draw initial_seed"),
    ("", "memory_summary"),
)  # fmt: skip
# What ``torch.accelerator`` answers as ``torch.cuda`` does, by its name there.
_ACCELERATOR = {
    **{name: name for name in (
        "is_available", "device_count", "current_stream", "set_stream", "synchronize",
        "empty_cache", "memory_allocated", "max_memory_allocated", "memory_reserved",
        "max_memory_reserved", "reset_peak_memory_stats",
    )},
    "current_device_index": "current_device", "current_device_idx": "current_device",
    "set_device_index": "set_device", "set_device_idx": "set_device",
    "get_memory_info": "mem_get_info",
}  # fmt: skip


def pretend(device: dict[str, Any], count: int, memory: LiveMemory) -> None:
    """Have ``torch.cuda`` and ``torch.accelerator`` answer for ``count`` devices.

    ``device``: ``name``, ``memory_bytes`` and ``capability``, a pair.
    """
    cuda: Any = torch.cuda
    cuda._initialized = True
    answers = {
        **{name: _said(answer) for answer, names in _ANSWERS for name in names.split()},
        **_state(count),
        **_described(device),
        **_used(memory, int(device["memory_bytes"])),
        **_streams(memory),
    }
    module: Any = getattr(torch, "accelerator", None)
    if module is not None:
        module.current_accelerator = lambda *_, **__: torch.device("cuda")
        for own, name in _ACCELERATOR.items():
            setattr(module, own, answers[name])
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cuda.graphs.is_current_stream_capturing = lambda: False
    cuda.nvtx = types.SimpleNamespace(
        range_push=lambda *_: 0, range_pop=lambda: 0, mark=lambda *_: None,
        range=lambda *_, **__: contextlib.nullcontext(),
    )  # fmt: skip
    _stand_in_for_c()
    _libraries()
    _types()


# Types of tensors by their names of before torch 0.4.
_NAMED = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16,
    "Int": torch.int32, "Long": torch.int64, "Bool": torch.bool,
}  # fmt: skip


class _TypeOfTensors(type):
    """``torch.cuda.FloatTensor`` and its like: makes tensors on the device, and tells them."""

    dtype: Any

    def __call__(cls, *given: Any, **_: Any) -> Any:
        given = tuple(given[0]) if given and isinstance(given[0], torch.Size) else given
        if not all(isinstance(one, int) for one in given):
            return torch.as_tensor(given[0]).to("cuda", cls.dtype)
        return torch.empty(given or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, torch.Tensor) and one.is_cuda and one.dtype == cls.dtype


def _types() -> None:
    """Have the types of old be there, and be the default where a script says so."""
    names: dict[Any, Any] = {}
    package: Any = torch
    tensor: Any = torch.Tensor
    for name, dtype in _NAMED.items():
        own = _TypeOfTensors(name + "Tensor", (), {"dtype": dtype, "__module__": "torch.cuda"})
        setattr(torch.cuda, name + "Tensor", own)
        names[own] = names["torch.cuda.%sTensor" % name] = dtype
    made, set_default = tensor.type, package.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        if kind not in names:
            torch.set_default_device(None)
            set_default(kind)
            return
        torch.set_default_dtype(names[kind])
        torch.set_default_device("cuda")

    def type_of(self: Any, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        if isinstance(dtype, _TypeOfTensors):
            return self.to("cuda", dtype.dtype)
        return made(self, *(() if dtype is None else (dtype,)), *rest, **named)

    tensor.type = type_of
    package.set_default_tensor_type = set_default_tensor_type


def current(device: Any = None) -> int:
    """Return the index of a device, by default of the current one."""
    if device is None:
        return _current[0]
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _current[0] if index is None else index


def _set_device(device: Any) -> None:
    _current[0] = current(device)
    # The guard's word too: torch's C++ asks it where ``.cuda()`` names no device.
    tell = getattr(torch._C, "_accelerator_setDeviceIndex", None)
    if tell is not None:
        tell(_current[0])


class _DeviceContext:
    """``torch.cuda.device(n)``."""

    def __init__(self, device: Any) -> None:
        self.idx = current(device) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _current[0]
        if self.idx >= 0:
            _set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        _set_device(self.prev_idx)


class _DeviceOf(_DeviceContext):
    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor.device.index if tensor.is_cuda else None)


class Stream:
    """A stream in which everything has happened already; the memory made in it is its own."""

    made: ClassVar[list[Stream]] = []  # by number; the first is the default one
    memory: Any = None

    def __init__(self, device: Any = None, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", current(device))
        self.cuda_stream = self.stream_id = len(Stream.made)
        self.device_index, self.device_type = self.device.index, 1
        Stream.made.append(self)
        self._before: list[int] = []

    def __enter__(self) -> Stream:
        self._before.append(Stream.memory.stream)
        Stream.memory.stream = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        Stream.memory.stream = self._before.pop()

    def record_event(self, event: Any = None) -> Any:
        """Return the event, which has happened."""
        return event or Event()

    wait_stream = wait_event = synchronize = staticmethod(_said(None))
    query = staticmethod(_said(True))
    is_capturing = staticmethod(_said(False))


class Event:
    """An event that has happened; times between two are the clock's, of no meaning here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at_s = 0.0

    def record(self, *_: Any) -> None:
        """Note the time."""
        self.at_s = time.perf_counter()

    wait = synchronize = staticmethod(_said(None))
    query = staticmethod(_said(True))

    def elapsed_time(self, other: Any) -> float:
        """Return the time to another event [ms]."""
        return float(max((other.at_s - self.at_s) * 1e3, 1e-3))


def _state(count: int) -> dict[str, Any]:
    state = torch.zeros(16, dtype=torch.uint8)
    return {
        "device_count": lambda: count,
        "_device_count_nvml": lambda: count,
        "current_device": lambda: _current[0],
        "set_device": _set_device,
        "device": _DeviceContext,
        "device_of": _DeviceOf,
        "get_rng_state": lambda *_: state.clone(),
        "get_rng_state_all": lambda: [state.clone()],
    }


def _described(device: dict[str, Any]) -> dict[str, Any]:
    major, minor = device["capability"]
    properties = types.SimpleNamespace(
        name=device["name"], major=major, minor=minor, total_memory=int(device["memory_bytes"]),
        multi_processor_count=int(device.get("processors", 132)), gcnArchName="", warp_size=32,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
        L2_cache_size=50 << 20, is_integrated=0, is_multi_gpu_board=0, uuid="0",
    )  # fmt: skip
    return {
        "get_device_name": lambda *_: device["name"],
        "get_device_capability": lambda *_: (major, minor),
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: ["sm_%d%d" % (major, minor)],
    }


def _used(memory: LiveMemory, total: int) -> dict[str, Any]:
    def statistics(*_: Any, **__: Any) -> Any:
        keys = {
            "allocated_bytes.all.current": memory.now,
            "allocated_bytes.all.peak": memory.most,
            "reserved_bytes.all.current": memory.now,
            "reserved_bytes.all.peak": memory.most,
        }
        return collections.defaultdict(int, keys)

    def reset(*_: Any, **__: Any) -> None:
        memory.most = memory.now

    return {
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "memory_allocated": lambda *_, **__: memory.now,
        "max_memory_allocated": lambda *_, **__: memory.most,
        "memory_reserved": lambda *_, **__: memory.now,
        "max_memory_reserved": lambda *_, **__: memory.most,
        "mem_get_info": lambda *_, **__: (max(0, total - memory.now), total),
        "memory_stats": statistics,
    }


def _streams(memory: LiveMemory) -> dict[str, Any]:
    Stream.memory, Stream.made = memory, []
    default = Stream()

    def set_stream(stream: Any) -> None:
        memory.stream = 0 if stream is None else stream.stream_id

    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "current_stream": lambda *_: Stream.made[memory.stream],
        "default_stream": lambda *_: default,
        "stream": lambda stream: contextlib.nullcontext() if stream is None else stream,
        "StreamContext": lambda stream: contextlib.nullcontext() if stream is None else stream,
        "set_stream": set_stream,
    }


def _stand_in_for_c() -> None:
    """Answer for the functions of ``torch._C`` that ask a driver, or that a CPU build lacks."""
    for name in (
        "_cuda_getCurrentRawStream", "_cuda_getDevice", "_cuda_setDevice", "_cuda_synchronize",
        "_cuda_maybeExchangeDevice", "_cuda_exchangeDevice", "_cuda_getDeviceCount",
    ):  # fmt: skip
        setattr(torch._C, name, lambda *_: 0)
    generator: Any = torch.Generator

    class Generator(generator):  # type: ignore[misc]
        """A generator of the processor's, whichever device is named."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return generator.__new__(cls, "cpu")

    package: Any = torch
    package.Generator, package.Stream, package.Event = Generator, Stream, Event


def _libraries() -> None:
    """Say that CUDA's libraries are there, where torch's Python asks before it chooses."""
    version: Any = torch.version
    version.cuda = version.cuda or "12.8"
    backend: Any = torch.backends.cuda
    backend.is_built = lambda: True
    cudnn: Any = torch.backends.cudnn
    cudnn.is_acceptable = lambda tensor: True
    cudnn.is_available = lambda: True
    cudnn.version = lambda: 91000
    import torch.amp.grad_scaler as scaler
    import torch.cuda.amp.grad_scaler as old_scaler

    modules: tuple[Any, ...] = (scaler, old_scaler, torch.cuda.amp.common)
    for module in modules:
        if hasattr(module, "amp_definitely_not_available"):
            module.amp_definitely_not_available = lambda: False
