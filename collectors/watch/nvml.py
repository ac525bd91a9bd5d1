"""NVIDIA GPUs through NVML, only where its library is: use, memory, power, clocks, PCIe.

Called through ctypes, so that nothing need be installed. NVML's utilisation is the share of time
in which *some* kernel ran, over its own period of 1/6 to 1 s: asking more often than once a second
learns nothing, and it is no occupancy.

Source: NVIDIA, NVML API Reference Guide (functions and structures are named as there).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_CLOCK_SM = 1
_PCIE_TX, _PCIE_RX = 0, 1
_NAME_BYTES = 96
_MOST_PROCESSES = 256
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE: the driver keeps a process's memory secret


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """All GPUs that the processes use: means of shares and clocks, sums of the rest.

    -1 is unknown: the device or the driver does not tell.
    """

    busy_fraction: float = -1.0
    memory_bytes: int = -1
    power_w: float = -1.0
    clock_mhz: float = -1.0
    received_bytes_per_s: float = -1.0
    sent_bytes_per_s: float = -1.0


class Gpus:
    """The GPUs of this machine; none where the library is missing."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        self._devices: list[ctypes.c_void_p] = []
        self.names: tuple[str, ...] = ()
        try:
            self._nvml = ctypes.CDLL(library)
            failed = self._nvml.nvmlInit_v2()
        except (OSError, AttributeError):  # no library, or one that is none
            return
        if failed:
            return
        count = self._number("nvmlDeviceGetCount_v2") or 0
        for index in range(int(count)):
            device = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                self._devices.append(device)
        self.names = tuple(self._name(device) for device in self._devices)

    def read(self, pids: Iterable[int], *, with_pcie: bool = False) -> GpuReading:
        """Return one reading of the GPUs that ``pids`` compute on.

        Inside a container NVML names the host's pids, or none: then every GPU with a process on
        it counts, or every GPU that is busy, without its memory. ``with_pcie`` takes 40 ms a GPU,
        in which the driver counts bytes.
        """
        if not self._devices:
            return GpuReading()
        wanted = set(pids)
        tables = [(device, self._processes(device)) for device in self._devices]
        own = [
            (device, [row for row in rows if row[0] in wanted])
            for device, rows in tables
            if any(pid in wanted for pid, _ in rows)
        ]
        used = own or [(device, rows) for device, rows in tables if rows]
        used = used or [(d, [(0, -1.0)]) for d in self._devices if self._busy(d) > 0]
        if not used:
            return GpuReading(busy_fraction=0.0, memory_bytes=0, power_w=0.0)
        devices = [device for device, _ in used]
        return GpuReading(
            busy_fraction=_mean([self._busy(device) for device in devices]),
            memory_bytes=int(_total([size for _, rows in used for _, size in rows])),
            power_w=_total([self._power(device) for device in devices]),
            clock_mhz=_mean([self._clock(device) for device in devices]),
            received_bytes_per_s=_total([self._pcie(d, _PCIE_RX) for d in devices * with_pcie]),
            sent_bytes_per_s=_total([self._pcie(d, _PCIE_TX) for d in devices * with_pcie]),
        )

    def _processes(self, device: ctypes.c_void_p) -> list[tuple[int, float]]:
        """Return (pid, bytes or -1) of the processes that compute on a device."""
        rows = (_ProcessInfo * _MOST_PROCESSES)()
        count = ctypes.c_uint(_MOST_PROCESSES)
        # Drivers before 510 know only the second version, of the same layout.
        for name in ("_v3", "_v2"):
            function = getattr(self._nvml, f"nvmlDeviceGetComputeRunningProcesses{name}", None)
            if function is not None:
                break
        if function is None or function(device, ctypes.byref(count), rows) != 0:
            return []
        return [
            (row.pid, -1.0 if row.used_memory == _NOT_AVAILABLE else float(row.used_memory))
            for row in rows[: count.value]
        ]

    def _busy(self, device: ctypes.c_void_p) -> float:
        rates = _Utilization()
        failed = self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(rates))
        return -1.0 if failed else rates.gpu / 100.0

    def _power(self, device: ctypes.c_void_p) -> float:
        milliwatt = self._number("nvmlDeviceGetPowerUsage", device)
        return -1.0 if milliwatt is None else milliwatt / 1000.0

    def _clock(self, device: ctypes.c_void_p) -> float:
        clock = self._number("nvmlDeviceGetClockInfo", device, _CLOCK_SM)
        return -1.0 if clock is None else float(clock)

    def _pcie(self, device: ctypes.c_void_p, way: int) -> float:
        kib = self._number("nvmlDeviceGetPcieThroughput", device, way)
        return -1.0 if kib is None else kib * 1024.0

    def _name(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        failed = self._call("nvmlDeviceGetName", device, text, _NAME_BYTES)
        return "GPU" if failed else text.value.decode(errors="replace")

    def _call(self, name: str, *arguments: Any) -> bool:
        """Call an NVML function and return whether it failed, or is missing in this driver."""
        function = getattr(self._nvml, name, None)
        return function is None or function(*arguments) != 0

    def _number(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned number that an NVML function writes, or None if it fails."""
        out = ctypes.c_uint()
        return None if self._call(name, *arguments, ctypes.byref(out)) else out.value


def _mean(values: list[float]) -> float:
    known = [value for value in values if value >= 0]
    return sum(known) / len(known) if known else -1.0


def _total(values: list[float]) -> float:
    known = [value for value in values if value >= 0]
    return sum(known) if known else -1.0
