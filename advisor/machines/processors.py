"""Processors as devices of the planners: ``datasets/devices/cpus.csv``.

The sheet holds what a core of a processor generation does per cycle and what bandwidth its
machines have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from advisor import data
from advisor.collectors import bounded
from advisor.errors import CatalogueError
from advisor.machines.devices import scaled
from advisor.planners.core.nouns import Device
from advisor.planners.core.units import GB

_WORDS: Final = ("pattern", "name", "architecture")  # the sheet's columns of text


def cpu_device(
    *,
    name: str,
    vcpus: float,
    memory_bytes: float,
    core_speed: float | None = None,
    cpu_model: str = "",
    cpu_arch: str = "",
) -> Device:
    """Return all virtual CPUs of a machine as one device.

    ``vcpus``: virtual CPUs: hyper-threads on most x86 machines, cores on Arm and on some AMD ones;
    ``core_speed``: CoreMark per virtual CPU; NaN or None where unknown [1/s]; ``cpu_model``,
    ``cpu_arch``: as the provider or ``/proc/cpuinfo`` names them; a generic row serves what is
    unknown.
    """
    row = _row(cpu_model, cpu_arch)
    speed = None if core_speed is None or math.isnan(core_speed) else float(core_speed)
    cycles = vcpus / row["threads_per_core"] * row["clock_ghz"] * 1e9
    bf16 = row["bf16_flop_per_cycle"]
    return Device(
        name=name,
        kind="cpu",
        vendor=row["name"],
        architecture=row["architecture"],
        memory_bytes=float(memory_bytes),
        memory_bytes_per_s=_bandwidth(row, vcpus),
        fp32_flop_per_s=cycles * row["fp32_flop_per_cycle"],
        bf16_flop_per_s=cycles * bf16 if bf16 else None,
        cores=max(1, round(vcpus)),
        core_speed=speed,
    )


def threads_per_core(generation: str) -> float:
    """Return the virtual CPUs of a core of a processor generation: a row of the sheet."""
    return float(_generation(generation)["threads_per_core"])


def processor_bytes_per_s(generation: str, vcpus: float) -> float:
    """Return the memory bandwidth that so many virtual CPUs of a generation reach [bytes/s]."""
    return _bandwidth(_generation(generation), vcpus)


@cache
def _generation(name: str) -> dict[str, Any]:
    """Return the row of that name, the generic one of no architecture else."""
    rows = (facts for _, facts in _rows() if facts["name"] == name)
    return next(rows, _rows()[-1][1])


@cache
def _rows() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    path = data.root("datasets") / "devices" / "cpus.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(bounded.csv_tables(file))
        return tuple((re.compile(row["pattern"]), _facts(row)) for row in rows)
    except (OSError, KeyError, ValueError, re.error) as error:
        raise CatalogueError(
            f"cannot read the processor sheet {path}: {error}", hint="install the package again"
        ) from error


def _facts(row: Mapping[str, str]) -> dict[str, Any]:
    numbers = {k: scaled(v, 1.0) for k, v in row.items() if k not in _WORDS}
    return {"name": row["name"], "architecture": row["architecture"], **numbers}


@cache
def _row(cpu_model: str, cpu_arch: str) -> dict[str, Any]:
    """Return the first row that the model matches, the architecture's generic one else."""
    for text in (cpu_model, cpu_arch):
        plain = re.sub(r"\((R|TM)\)", "", text or "").upper()
        plain = re.sub(r"\s+", " ", plain)
        for pattern, facts in _rows():
            if plain.strip() and pattern.pattern and pattern.search(plain):
                return facts
    return _rows()[-1][1]


def _bandwidth(row: Mapping[str, Any], vcpus: float) -> float:
    """Return the least of what cores, chiplets and sockets let through [bytes/s]."""
    limits = [vcpus * row["vcpu_gb_s"], _steps(vcpus, row["socket_vcpus"]) * row["socket_gb_s"]]
    if row["slice_vcpus"]:
        limits.append(_steps(vcpus, row["slice_vcpus"]) * row["slice_gb_s"])
    return float(min(limits)) * GB


def _steps(vcpus: float, per: float) -> float:
    return float(math.ceil(vcpus / per))
