"""The machine at hand as a device of the planners: measured rates where there are any.

A sheet measured there (``advisor doctor --device-sheet``) stands in place of the tables' priors;
without one a processor takes the four-second benchmark, and a GPU the device sheet's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from advisor.collectors.recording import DeviceSheet, Host
from advisor.machines.devices import suite_device
from advisor.machines.processors import cpu_device
from advisor.planners.core.case import STREAM_SHARE
from advisor.planners.core.nouns import Device

_PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16", "fp8")


# What a kernel keeps for itself differs from one boot to the next.
_SAME_MEMORY: Final = 0.01


def is_same_machine(recorded: Host, here: Host) -> bool:
    """Whether a job was recorded on the machine at hand, as far as machines can be told apart.

    Limits are no part of it: they are the job's (``collectors.limits``).
    """
    return (
        recorded.cpu_model == here.cpu_model
        and recorded.logical_cpus == here.logical_cpus
        and abs(recorded.memory_bytes - here.memory_bytes) <= _SAME_MEMORY * here.memory_bytes
        and (not recorded.gpus or not here.gpus or recorded.gpus == here.gpus)
    )


def host_device(host: Host, threads: int | None, kind: str = "cpu") -> Device | None:
    """Return what a job computed on: the host's processor with ``threads``, or its GPU.

    ``threads``: threads that the framework computed with; None takes all it may use; ``kind``:
    ``"cpu"``, or PyTorch's name of an accelerator (``"cuda"``, ``"cuda:0"``).

    Returns
    -------
    Device or None
        None for a GPU that has no row in the device sheet.
    """
    return processor(host, threads) if kind.startswith("cpu") else _gpu(host)


def processor(host: Host, threads: int | None) -> Device:
    """Return the host's processor with so many threads; None takes all it may use."""
    used = float(min(threads or host.cpu_limit, host.cpu_limit))
    device = cpu_device(
        name="host",
        vcpus=used,
        memory_bytes=host.memory_limit_bytes,
        cpu_model=host.cpu_model,
        cpu_arch=host.system,
    )
    if host.benchmark is not None:
        b = host.benchmark
        share = (used - 1) / (host.cpu_limit - 1) if host.cpu_limit > 1 else 1.0
        device = replace(
            device,
            sustained_fp32_flop_per_s=_between(
                b.matmul_one_core_flop_per_s, b.matmul_flop_per_s, share
            ),
            memory_bytes_per_s=_between(b.copy_one_core_bytes_per_s, b.copy_bytes_per_s, share),
            core_speed=b.scalar_score,
        )
    sheet = next((s for s in host.sheets if s.device == "cpu" and s.threads), None)
    return device if sheet is None else _measured_cpu(device, sheet, used)


def _measured_cpu(device: Device, sheet: DeviceSheet, threads: float) -> Device:
    """Take the sheet's rates at so many threads, in a straight line between those measured."""
    fp32 = _at(threads, sheet.threads, sheet.flop_per_s_by_threads)
    bf16 = None
    if sheet.bf16_flop_per_s:  # measured on all threads; shared out as fp32 was
        bf16 = sheet.bf16_flop_per_s * fp32 / sheet.fp32_flop_per_s
    return replace(
        device,
        sustained_fp32_flop_per_s=fp32,
        bf16_flop_per_s=(device.bf16_flop_per_s or bf16) if bf16 else None,
        sustained_fp16_flop_per_s=bf16,
        memory_bytes_per_s=_at(threads, sheet.threads, sheet.bytes_per_s_by_threads),
        call_s=sheet.call_s,
    )


def _gpu(host: Host) -> Device | None:
    name = host.gpus[0] if host.gpus else ""
    sheet = next(
        (s for s in host.sheets if s.device == "cuda" and s.name == (name or s.name)), None
    )
    device = suite_device(name or (sheet.name if sheet else ""))
    if device is None or sheet is None:
        return device
    rates: dict[str, Any] = {}
    for precision in _PRECISIONS:
        field = f"{precision}_flop_per_s"
        if getattr(device, field) is None and getattr(sheet, field):
            rates[field] = getattr(sheet, field)
    half = sheet.fp16_flop_per_s or sheet.bf16_flop_per_s
    return replace(
        device,
        **rates,
        sustained_fp32_flop_per_s=sheet.fp32_flop_per_s,
        sustained_fp16_flop_per_s=half or device.sustained_fp16_flop_per_s,
        # The device model's efficiencies are shares of the nominal bandwidth.
        memory_bytes_per_s=sheet.copy_bytes_per_s / STREAM_SHARE,
        call_s=sheet.call_s,
    )


def _at(threads: float, known: Sequence[int], values: Sequence[float]) -> float:
    """Return the value at a number of threads, linear between and constant beyond."""
    import numpy as np

    return float(np.interp(threads, known, values))


def _between(one: float, all_: float, share: float) -> float:
    return one + (all_ - one) * min(max(share, 0.0), 1.0)
