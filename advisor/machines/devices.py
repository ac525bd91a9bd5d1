"""Devices by their names, processors, the machine at hand, and the device model's constants.

``suite_device`` knows accelerators by name, ``cpu_device`` is a rented processor, ``host_device``
what is at hand; constants come from ``trained_models/device_model``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from advisor import data
from advisor.answer import fitted, rounded, to_record, with_hooks
from advisor.catalogue import shipped
from advisor.collectors import bounded
from advisor.collectors.format import Host, Sheet
from advisor.errors import CatalogueError
from advisor.planners.core import GB, STREAM_SHARE, Device
from advisor.planners.step import (
    AMPLITUDES,
    CalibrationParameters,
    DeviceParameters,
    ErrorPoints,
    ResidualParameters,
    SeenErrors,
)

if TYPE_CHECKING:
    from cattrs import Converter

# Words that make another chip, or a part of one, of what else a name says.
_OTHER_CHIP: Final = frozenset(
    {"ti", "super", "laptop", "mobile", "max", "q", "maxq", "mig", "d", "sff", "g", "vgpu"}
)


def _file(path: Path | None) -> Path:
    return path or data.model("device_model") / "parameters.json"


def device_parameters(path: Path | None = None) -> DeviceParameters:
    """Return the fitted constants of the device model, the bundled or those in ``path``."""
    return fitted(DeviceParameters, _file(path), part="parameters", train="device-model")


def calibration_parameters(path: Path | None = None) -> CalibrationParameters:
    """Return how far a measured factor carries from device to device."""
    return fitted(CalibrationParameters, _file(path), part="calibration", train="device-model")


@cache
def accelerator_devices() -> dict[str, Device]:
    """Return every accelerator that the program knows as a device, by its canonical name.

    Raises CatalogueError if the table cannot be read or a row has an impossible value.
    """
    return {name: row.device for name, row in shipped().items() if row.device is not None}


def model_day() -> str:
    """Return the day the device model was fitted on. ISO 8601."""
    return str(bounded.read_json(_file(None))["as_of"])


def suite_device(name: str) -> Device | None:
    """Return the sheet's device that a suite or a driver means by a name, None where unknown.

    Words may stand in any order, and others beside them, as long as none names another chip.

    Raises CatalogueError if the sheet or the names cannot be read.

    Examples
    --------
    >>> [device and device.name for device in map(suite_device, (
    ...     "LambdaCloud 1x A100 40GB PCIe", "Tesla V100-SXM2-16GB", "RTX 3050 Mobile"))]
    ['A100-PCIe-40GB', 'V100-SXM2-16GB', None]
    """
    known = _suite_names()
    found = known.get(_plain(name))
    if found is not None:
        return found
    words = _words(name)
    best = max(
        (each for each in _suite_words() if each <= words and not (words - each) & _OTHER_CHIP),
        key=len,
        default=None,
    )
    return None if best is None else _suite_words()[best]


@cache
def _suite_words() -> dict[frozenset[str], Device]:
    """Return the devices by the words of their names; where two have the same words, neither."""
    found: dict[frozenset[str], Device | None] = {}
    for name, device in _named_devices():
        words = _words(name)
        found[words] = device if found.get(words, device) == device else None
    return {words: device for words, device in found.items() if device is not None and words}


def _words(name: str) -> frozenset[str]:
    """Return the words of a name without makers and counts (``8x``)."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?i)\b\d+x(?=[a-z\s_-])|_\d+x", " ", name).lower())
    return frozenset(words) - {"nvidia", "tesla", "geforce", "instinct", "amd"}


@cache
def _suite_names() -> dict[str, Device]:
    return {_plain(name): device for name, device in _named_devices()}


def _named_devices() -> list[tuple[str, Device]]:
    """Return names of the known devices: their own, then those that suites give them."""
    rows, known = shipped(), accelerator_devices()
    suites = [(alias, known[n]) for n in known for alias in rows[n].suite_names]
    return [*known.items(), *suites]


def _plain(name: str) -> str:
    """Return a name without makers, case and punctuation."""
    bare = re.sub(r"(?i)nvidia|tesla|geforce|instinct|amd", "", name)
    return re.sub(r"[^a-z0-9]", "", bare.lower())


def scaled(text: Any, unit: float) -> float | None:
    """Return a number in SI units, None where the cell is empty or not a number."""
    if text is None or text == "":
        return None
    value = float(text) * unit
    return None if math.isnan(value) else value


_WORDS: Final = ("pattern", "name", "architecture", "is_assumed")  # the sheet's columns of text
_BETWEEN_MODELS: Final = ", "


def cpu_device(
    *, name: str, vcpus: float, memory_bytes: float, core_speed: float | None = None,
    cpu_model: str = "", cpu_arch: str = "",
) -> Device:  # fmt: skip
    """Return all virtual CPUs of a machine as one device.

    ``datasets/devices/cpus.csv`` has what a core of a generation does per cycle, and what
    bandwidth its machines have.

    ``vcpus``: virtual CPUs: hyper-threads on most x86 machines, cores on Arm and on some AMD ones;
    ``core_speed``: CoreMark per virtual CPU; NaN or None where unknown [1/s]; ``cpu_model``,
    ``cpu_arch``: as the provider or ``/proc/cpuinfo`` names them. Of several models, with commas
    between, the slowest is taken; a generic row serves what is unknown. Both are assumed.
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
        assumed=_assumed(cpu_model, row),
    )


def _assumed(cpu_model: str, row: Mapping[str, Any]) -> str:
    """Say why a row of the sheet stands for a processor; ``""`` where it is the processor's."""
    if _BETWEEN_MODELS in cpu_model:
        return f"may be {cpu_model}: taken as {row['name']}, the slowest of them"
    if row["is_assumed"]:
        return f"{cpu_model or 'no processor stated'}: taken as {row['name']}"
    return ""


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
    return {**{k: row[k] for k in _WORDS[1:]}, **numbers}


@cache
def _row(cpu_model: str, cpu_arch: str) -> dict[str, Any]:
    """Return the first row that the model matches, the architecture's generic one else.

    Of several models it is that of the least arithmetic.
    """
    models = cpu_model.split(_BETWEEN_MODELS)
    if len(models) > 1:
        return min((_row(model, cpu_arch) for model in models), key=_vcpu_gflop_per_s)
    for text in (cpu_model, cpu_arch):
        plain = re.sub(r"\((R|TM)\)", "", text or "").upper()
        plain = re.sub(r"\s+", " ", plain)
        for pattern, facts in _rows():
            if plain.strip() and pattern.pattern and pattern.search(plain):
                return facts
    return _rows()[-1][1]


def _vcpu_gflop_per_s(row: Mapping[str, Any]) -> float:
    """Return what a virtual CPU of a row computes at most, in single precision [Gflop/s]."""
    return float(row["clock_ghz"] * row["fp32_flop_per_cycle"] / row["threads_per_core"])


def _bandwidth(row: Mapping[str, Any], vcpus: float) -> float:
    """Return the least of what cores, chiplets and sockets let through [bytes/s]."""
    steps = (
        math.ceil(vcpus / row[f"{part}_vcpus"]) * row[f"{part}_gb_s"]
        for part in ("socket", "slice")
        if row[f"{part}_vcpus"]
    )
    return float(min(vcpus * row["vcpu_gb_s"], *steps)) * GB


_PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16", "fp8")


# What a kernel keeps for itself differs from one boot to the next.
_SAME_MEMORY: Final = 0.01


def is_same_machine(recorded: Host, here: Host) -> bool:
    """Whether a job was recorded on the machine at hand, as far as machines can be told apart.

    Limits are no part of it: they are the job's (``collectors.format.facts``).
    """
    return (
        recorded.cpu_model == here.cpu_model
        and recorded.logical_cpus == here.logical_cpus
        and abs(recorded.memory_bytes - here.memory_bytes) <= _SAME_MEMORY * here.memory_bytes
        and (not recorded.gpus or not here.gpus or recorded.gpus == here.gpus)
    )


def host_device(host: Host, threads: int | None, kind: str = "cpu") -> Device | None:
    """Return what a job computed on: the host's processor with ``threads``, or its GPU.

    A sheet measured there (``advisor doctor --device-sheet``) stands in place of the tables'
    priors; without one a processor takes the four-second benchmark, and a GPU the table's row.

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
    sheet = next((s for s in host.sheets if s["device"] == "cpu" and s["threads"]), None)
    return device if sheet is None else _measured_cpu(device, sheet, used)


def _measured_cpu(device: Device, sheet: Sheet, threads: float) -> Device:
    """Take the sheet's rates at so many threads, in a straight line between those measured."""
    fp32 = _at(threads, sheet["threads"], sheet["flop_per_s_by_threads"])
    bf16 = None
    if sheet["bf16_flop_per_s"]:  # measured on all threads; shared out as fp32 was
        bf16 = sheet["bf16_flop_per_s"] * fp32 / sheet["fp32_flop_per_s"]
    return replace(
        device,
        sustained_fp32_flop_per_s=fp32,
        bf16_flop_per_s=(device.bf16_flop_per_s or bf16) if bf16 else None,
        sustained_fp16_flop_per_s=bf16,
        memory_bytes_per_s=_at(threads, sheet["threads"], sheet["bytes_per_s_by_threads"]),
        call_s=sheet["call_s"],
    )


def _gpu(host: Host) -> Device | None:
    name = host.gpus[0] if host.gpus else ""
    sheets = (s for s in host.sheets if s["device"] == "cuda")
    sheet = next((s for s in sheets if s["name"] == (name or s["name"])), None)
    device = suite_device(name or (sheet["name"] if sheet else ""))
    if device is None or sheet is None:
        return device
    rates: dict[str, Any] = {}
    for precision in _PRECISIONS:
        field = f"{precision}_flop_per_s"
        if getattr(device, field) is None and sheet[field]:
            rates[field] = sheet[field]
    half = sheet["fp16_flop_per_s"] or sheet["bf16_flop_per_s"]
    return replace(
        device,
        **rates,
        sustained_fp32_flop_per_s=sheet["fp32_flop_per_s"],
        sustained_fp16_flop_per_s=half or device.sustained_fp16_flop_per_s,
        # The device model's efficiencies are shares of the nominal bandwidth.
        memory_bytes_per_s=sheet["copy_bytes_per_s"] / STREAM_SHARE,
        call_s=sheet["call_s"],
    )


def _at(threads: float, known: Sequence[int], values: Sequence[float]) -> float:
    """Return the value at a number of threads, linear between and constant beyond."""
    import numpy as np

    return float(np.interp(threads, known, values))


def _between(one: float, all_: float, share: float) -> float:
    return one + (all_ - one) * min(max(share, 0.0), 1.0)


FILE: Final = "residual.json"
_DIGITS: Final = 4  # of logarithms: 0.01 %


def residual_parameters(path: Path | None = None) -> ResidualParameters:
    """Return the packaged process, or that of another file.

    Raises ModelError if a file is missing, not JSON, of another version, or lacks a part.
    """
    return fitted(
        ResidualParameters, path or data.model("device_model") / FILE, train="device-model"
    )


def errors_record(errors: ResidualParameters) -> dict[str, Any]:
    """Return the JSON form of the process, its numbers rounded."""
    record = {"schema_version": 1, **to_record(errors)}
    return cast(dict[str, Any], rounded(record, lambda number: round(number, _DIGITS)))


def _written(seen: SeenErrors) -> dict[str, Any]:
    """Return errors as columns beside those of their points."""
    scatter = np.broadcast_to(seen.scatter, len(seen.points))
    errors = {"of_peaks": seen.of_peaks, "of_rates": seen.of_rates, "scatter": scatter}
    return cast(dict[str, Any], to_record(seen.points) | to_record(errors))


def _seen(columns: Any, points: Any) -> SeenErrors:
    """Return errors that were written as columns, all of one length and known."""
    names = ("of_peaks", "of_rates", "scatter")
    at: ErrorPoints = points({k: v for k, v in columns.items() if k not in names}, ErrorPoints)
    errors = {name: np.array(columns[name], float) for name in names}
    known = [getattr(at, f.name) for f in fields(at)] + [*errors.values()]
    if any(len(one) != len(at) for one in known):
        raise ValueError("columns differ in length")
    if at.rates.shape[1:] != (4,) or at.job.shape[1:] != (6,):
        raise ValueError("rates or job has too few columns")
    if not all(np.isfinite(one).all() for one in known if one.dtype.kind == "f"):
        raise ValueError("a column has a number that is none")
    return SeenErrors(points=at, **errors)


def _process(record: Any, plain: Any) -> ResidualParameters:
    """Return the process, its numbers positive."""
    found: ResidualParameters = plain(record, ResidualParameters)
    numbers = [v for f in fields(found) if isinstance(v := getattr(found, f.name), float)]
    if not all(one > 0 for one in (*numbers, *found.rate_scales)):
        raise ValueError("a length, scale or spread is not positive")
    if lacking := set(AMPLITUDES) - set(found.amplitudes):
        raise ValueError(f"amplitudes lack {', '.join(sorted(lacking))}")
    return found


def _as_columns(converter: Converter) -> None:
    from cattrs.gen import make_dict_structure_fn

    converter.register_unstructure_hook(SeenErrors, _written)
    converter.register_structure_hook(SeenErrors, lambda row, _: _seen(row, converter.structure))
    plain = make_dict_structure_fn(ResidualParameters, converter)
    converter.register_structure_hook(ResidualParameters, lambda row, _: _process(row, plain))


with_hooks(_as_columns)
