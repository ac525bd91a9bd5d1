"""Accelerators as devices of the planners: ``datasets/devices/accelerators.csv``.

The sheet holds their peaks and, where measured, their sustained rates. Constants come from
``trained_models/device_model``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from advisor import data
from advisor.catalogue.device_memory import device_memory_bytes
from advisor.collectors import bounded
from advisor.errors import CatalogueError, ModelError
from advisor.planners.core.nouns import Device
from advisor.planners.core.units import GB, TERA
from advisor.planners.step.calibration import CalibrationParameters
from advisor.planners.step.device_parameters import DeviceParameters, Efficiency

if TYPE_CHECKING:
    from advisor.catalogue import Accelerator

_PEAKS: Final = (
    "fp32_flop_per_s", "tf32_flop_per_s", "bf16_flop_per_s", "fp16_flop_per_s", "fp8_flop_per_s",
)  # fmt: skip
# Words that make another chip, or a part of one, of what else a name says.
_OTHER_CHIP: Final = frozenset(
    {"ti", "super", "laptop", "mobile", "max", "q", "maxq", "mig", "d", "sff", "g", "vgpu"}
)
_OF_THE_FIT: Final = ("fitted_architectures", "fitted_kinds", "fitted_rates")
PARAMETERS: Final = "device_model/parameters.json"
SCHEMA_VERSION: Final = 1


def device_parameters(path: Path | None = None) -> DeviceParameters:
    """Return the fitted constants of the device model.

    ``path``: another ``parameters.json`` than the bundled one.

    Raises ModelError if the file is missing, not JSON, of another version, or lacks a constant.
    """
    try:
        record = _read(path)
        bounded.check_numbers(record["parameters"], but=_OF_THE_FIT)
        return parameters_of(record)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, f"lacks or spoils a constant: {error}") from error


def parameters_of(record: Mapping[str, Any]) -> DeviceParameters:
    """Return the constants of the device model from the content of ``parameters.json``.

    Raises KeyError, TypeError if it lacks a constant, or has one that is unknown.
    """
    values = record["parameters"]
    return DeviceParameters(
        efficiencies={
            kind: {name: Efficiency(**e) for name, e in by_kind.items()}
            for kind, by_kind in values["efficiencies"].items()
        },
        fitted_architectures=frozenset(values["fitted_architectures"]),
        fitted_kinds=frozenset(values["fitted_kinds"]),
        fitted_rates=tuple((float(a), float(b), float(c)) for a, b, c in values["fitted_rates"]),
        **{
            f.name: values[f.name]
            for f in fields(DeviceParameters)
            if f.name not in ("efficiencies", *_OF_THE_FIT)
        },
    )


def calibration_parameters(path: Path | None = None) -> CalibrationParameters:
    """Return how far a measured factor carries from device to device.

    Raises ModelError as ``device_parameters``.
    """
    try:
        found = _read(path)["calibration"]
        bounded.check_numbers(found)
        return CalibrationParameters(**found)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, f"lacks or spoils a constant: {error}") from error


def accelerator_devices(path: Path | None = None) -> dict[str, Device]:
    """Return every accelerator of the device sheet by its canonical name.

    Raises CatalogueError if the sheet cannot be read or a row has an impossible value.
    """
    return dict(_sheet(path or data.root("datasets") / "devices" / "accelerators.csv"))


def sheet_sources(name: str) -> Mapping[str, str]:
    """Return where a device's rates are from: ``peak_source, sustained_source, as_of``.

    Empty for a device that is not in the sheet (a processor).
    """
    path = data.root("datasets") / "devices" / "accelerators.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in bounded.csv_tables(file):
            if row["name"] == name:
                return {key: row[key] for key in ("peak_source", "sustained_source", "as_of")}
    return {}


def model_day() -> str:
    """Return the day the device model was fitted on. ISO 8601.

    Raises ModelError as ``device_parameters``.
    """
    return str(_read(None).get("as_of", ""))


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
    """Return names of the sheet's devices: their own, then those that suites give them."""
    sheet = accelerator_devices()
    path = data.root("datasets") / "devices" / "suite_names.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            named = [(row["name"], sheet[row["device"]]) for row in bounded.csv_tables(file)]
        return [*sheet.items(), *named]
    except (OSError, KeyError) as error:
        raise CatalogueError(
            f"cannot read the suites' names {path}: {error}", hint="install the package again"
        ) from error


def _plain(name: str) -> str:
    """Return a name without makers, case and punctuation."""
    bare = re.sub(r"(?i)nvidia|tesla|geforce|instinct|amd", "", name)
    return re.sub(r"[^a-z0-9]", "", bare.lower())


def catalogue_device(row: Accelerator | None, *, share: float = 1.0) -> Device | None:
    """Return an accelerator of the catalogue: the device sheet's row, which knows sustained rates.

    None where nothing is known of its arithmetic or bandwidth. A share of a card (time-sliced or
    partitioned) has that share of every rate and of the memory.
    """
    if row is None or not row.memory_bytes_per_s:
        return None
    device = accelerator_devices().get(row.name)
    if device is None:
        rates = {name: getattr(row, name) for name in _PEAKS}
        if not any(rates.values()):
            return None
        device = Device(
            name=row.name, kind="gpu", vendor=row.vendor, architecture=row.architecture,
            memory_bytes=row.memory_bytes, memory_bytes_per_s=row.memory_bytes_per_s,
            tdp_w=row.tdp_w, release_year=_family_year(row), **rates,
        )  # fmt: skip
    if share >= 1.0:
        return device
    shared = {
        f.name: value * share
        for f in fields(Device)
        if f.name.endswith(("_per_s", "_bytes", "tdp_w")) and (value := getattr(device, f.name))
    }
    return replace(device, name=f"{row.name}/{1 / share:.3g}", **shared)


def _read(path: Path | None) -> dict[str, Any]:
    file = path or data.root("trained_models") / PARAMETERS
    try:
        record = bounded.read_json(file)
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise _unreadable(path, f"has schema version {version}, expected {SCHEMA_VERSION}")
    return cast(dict[str, Any], record)


def _unreadable(path: Path | None, why: str) -> ModelError:
    return ModelError(
        f"the device model {path or PARAMETERS} {why}",
        hint="fit it again with: advisor train device-model",
    )


@cache
def _sheet(path: Path) -> dict[str, Device]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(bounded.csv_tables(file))
        first = _first_years(rows)
        return {row["name"]: _sheet_device(row, first.get(row["architecture"])) for row in rows}
    except (OSError, KeyError, ValueError) as error:
        raise CatalogueError(
            f"cannot read the device sheet {path}: {error}", hint="install the package again"
        ) from error


def _first_years(rows: list[dict[str, str]]) -> dict[str, float]:
    """Return the year of each chip family's first card."""
    found: dict[str, float] = {}
    for row in rows:
        year = scaled(row["release_year"], 1.0)
        if year is not None:
            found[row["architecture"]] = min(year, found.get(row["architecture"], year))
    return found


def _family_year(row: Accelerator) -> float | None:
    """Return the year of the first card of a family that the sheet knows, the row's own else."""
    years = (d.release_year for d in accelerator_devices().values()
             if d.architecture == row.architecture)  # fmt: skip
    return next(years, None) or row.release_year


def _sheet_device(row: Mapping[str, str], year: float | None) -> Device:
    rates = {
        f"{p}_flop_per_s": scaled(row[f"{p}_tflop_s"], TERA)
        for p in (
            "fp32", "tf32", "bf16", "fp16", "fp8", "sustained_fp32", "sustained_fp16", "best_fp16",
        )
    }  # fmt: skip
    return Device(
        name=row["name"],
        kind=cast(Any, row["kind"]),
        vendor=row["vendor"],
        architecture=row["architecture"],
        memory_bytes=device_memory_bytes()[row["name"]],
        memory_bytes_per_s=float(row["bandwidth_gb_s"]) * GB,
        tdp_w=scaled(row["tdp_w"], 1.0),
        release_year=year,
        **cast(Any, rates),
    )


def scaled(text: Any, unit: float) -> float | None:
    """Return a number in SI units, None where the cell is empty or not a number."""
    if text is None or text == "":
        return None
    value = float(text) * unit
    return None if math.isnan(value) else value
