"""Build the type columns: what providers state, and what others measured to fill the holes.

``build_types`` joins them; ``fill`` tells the speed of types that nobody measured; what pages of
providers state goes by the names of types.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from fnmatch import translate
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import files
from advisor.catalogue.accelerators import Accelerator
from advisor.catalogue.networks import network_columns
from advisor.catalogue.offer_columns import Floats, Ints, SpeedSource, Texts, TypeColumns
from advisor.catalogue.tables import Column, Values, read
from advisor.errors import CatalogueError
from advisor.planners.core import GB, GIB

_NOISE = re.compile(
    r"\(r\)|\(tm\)|intel|amd|arm|xeon|platinum|gold|epyc|cpu|processor|\d+-core|\d+ core"
    r"|@?\s*[\d.]+ ?[gm]hz|\s",
    re.IGNORECASE,
)
_AZURE_SIZE = re.compile(r"(?<=[A-Z])[\d-]+")
_SEPARATOR = re.compile(r"[.\-_]")


def processor(model: str) -> str:
    """Reduce a processor's name to what tells it from another.

    >>> processor("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz")
    '8370c'
    >>> processor("AMD EPYC 9R45 96-Core")
    '9r45'
    """
    return _NOISE.sub("", model).casefold()


def family(provider: str, name: str) -> str:
    """Return the provider's family of a type: the letters and generation, without the size.

    >>> family("aws", "m5.large"), family("gcp", "n2-standard-8")
    ('m5', 'n2')
    >>> family("azure", "Standard_D8s_v5")
    'Ds_v5'
    """
    if provider == "azure":
        return _AZURE_SIZE.sub("", name.removeprefix("Standard_"), count=1)
    return _SEPARATOR.split(name, maxsplit=1)[0]


def fill(
    provider: Texts, name: Texts, cpu_model: Texts, measured: Floats, converted: Floats
) -> tuple[Floats, Texts]:
    """Return the speed of every type and where it comes from.

    The speed of a vCPU is CoreMark's, run with all vCPUs busy and divided by their number, so that
    hyperthreads and whole cores compare. A hole is filled by the first rule that applies; the
    errors are those of measured types held out (``lab/speed/catalogue_core_speed.py``,
    2026-11-21):

    1. the median of its family, e.g. ``m5`` of ``m5.large`` (median error 2 %, 90th percentile
       8 %)
    2. other benchmarks of the type (6-9 %, 19-25 %), or of its family
    3. the median of the types with its processor (5 %, 46 %: a vCPU may be a core or half of one)

    ``provider``, ``name``, ``cpu_model``: shape (types,); ``measured``: (types,); CoreMark per
    vCPU, NaN for a hole; ``converted``: (types,); the same from other benchmarks of the type
    (``advisor.lab.catalogue.build``), NaN where none was run.

    Returns
    -------
    core_speed : Floats, shape (types,)
    source : Texts, shape (types,)
        A ``SpeedSource`` each.
    """
    providers, names = provider.tolist(), name.tolist()
    reduced = {model: processor(model) for model in set(cpu_model.tolist())}
    models = [reduced[model] or None for model in cpu_model.tolist()]
    own_model = [(p, m) if m else None for p, m in zip(providers, models, strict=True)]
    own_family = [(p, family(p, n)) for p, n in zip(providers, names, strict=True)]
    speed = measured.copy()
    source = np.where(np.isnan(measured), "unknown", "measured").astype("U24")

    def complete(found: Floats, label: SpeedSource) -> None:
        holes = np.isnan(speed) & ~np.isnan(found)
        speed[holes] = found[holes]
        source[holes] = label

    complete(_medians(own_family, speed), "same family")
    complete(converted, "other benchmark")
    complete(_medians(own_family, speed), "same family")
    complete(_medians(own_model, speed), "same cpu model")
    complete(_medians(models, speed), "same cpu model")
    return speed, source


def _medians(keys: Sequence[Hashable], known: Floats) -> Floats:
    """Return for each hole the median of the known rows with its key; None has none."""
    speeds = known.tolist()
    wanted = {key for key, value in zip(keys, speeds, strict=True) if value != value} - {None}
    groups: dict[Hashable, list[float]] = {}
    for one, value in zip(keys, speeds, strict=True):
        if one in wanted and value == value:
            groups.setdefault(one, []).append(value)
    medians = {key: median(values) for key, values in groups.items()}
    return np.array([medians.get(key, np.nan) for key in keys])


def build_types(
    table: Mapping[str, Values],
    share_alike: Path | None,
    pages: Mapping[str, Path | None],
    accelerators: Mapping[str, Accelerator],
) -> TypeColumns:
    """Join the providers' statements with the measured table.

    Raises CatalogueError if a type has an accelerator that nobody describes.

    ``share_alike``: the file of ``files.SHARE_ALIKE_SPECIFICATIONS``; without it those facts stay
    unknown; ``pages``: by name the files of what providers' pages state (networks, processors,
    baselines), likewise.
    """
    stated = dict(table)
    provider, name = stated["provider"], stated.pop("instance_type")
    extra = _measured(share_alike, provider, name)
    for column in ("vcpus", "memory_gib"):
        stated[column] = np.where(np.isnan(stated[column]), extra[column], stated[column])
    cpu_model, cpu_model_source = _processor_columns(
        pages[files.PROCESSORS_FILE], provider, name,
        np.where(stated["cpu_model"] == "", extra["cpu_model"], stated["cpu_model"]),
    )  # fmt: skip
    burst, coremark_share = _burst_columns(pages[files.BURSTABLE_FILE], provider, name)
    core_speed, core_speed_source = fill(
        provider,
        name,
        cpu_model,
        stated.pop("coremark_per_vcpu") / coremark_share,
        extra["coremark_per_vcpu_converted"],
    )
    network = network_columns(
        pages[files.NETWORKS_FILE], provider, name,
        gbps=stated.pop("network_gbps"),
        baseline_gbps=stated.pop("network_baseline_gbps"),
        rdma=stated["rdma"],
    )  # fmt: skip
    known = (
        network
        | burst
        | {
            "name": name,
            "memory_bytes": GIB * stated.pop("memory_gib"),
            "accelerator_memory_bytes": _accelerator_memory(stated["accelerator"], accelerators),
            "intra_node_bytes_per_s": GB * extra["intra_node_gbs"],
            "intra_node_basis": extra["intra_node_basis"],
            "host_device_bytes_per_s": GB * extra["host_device_gbs"],
            "host_device_basis": extra["host_device_basis"],
            "core_speed": core_speed,
            "core_speed_source": core_speed_source,
            "cpu_model": cpu_model,
            "cpu_model_source": cpu_model_source,
            "local_ssd_bytes": GB * stated.pop("local_ssd_gb"),
        }
    )
    return TypeColumns.filled(len(name), device=-1, **stated | known)


def _measured(path: Path | None, provider: Texts, name: Texts) -> dict[str, NDArray[Any]]:
    """Return the columns of the share-alike table, spread over all types."""
    table = _table_or_none(path, files.SHARE_ALIKE_SPECIFICATIONS)
    pairs = zip(table["provider"], table["instance_type"], strict=True)
    rows = {pair: at for at, pair in enumerate(pairs)}
    keys = zip(provider.tolist(), name.tolist(), strict=True)
    at = np.array([rows.get(key, len(rows)) for key in keys], dtype=np.int64)
    return {
        column.name: np.append(table[column.name], column.unknown)[at]
        for column in files.SHARE_ALIKE_SPECIFICATIONS[2:]
    }


def _accelerator_memory(names: Texts, accelerators: Mapping[str, Accelerator]) -> Floats:
    listed = names.tolist()
    unknown = sorted(set(listed) - set(accelerators) - {""})
    if unknown:
        raise CatalogueError(
            f"a type has the accelerator {unknown[0]!r}, which accelerators.csv does not describe",
            hint="add it there, or correct the name in types.csv.gz",
        )
    memory = {name: one.memory_bytes for name, one in accelerators.items()}
    return np.array([memory.get(name, np.nan) for name in listed])


_CREDITS_PER_H: Final = 60.0  # a credit is a virtual CPU for a minute


def _processor_columns(
    path: Path | None, provider: Texts, name: Texts, cpu_model: Texts
) -> tuple[Texts, Texts]:
    """Return the types' processors, those that pages state where none is known, and the pages.

    ``processors.csv`` names the processor of types of which the collected specifications name
    none.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.

    ``path``: the file of ``files.PROCESSORS``; without it nothing is added.
    """
    table = _table_or_none(path, files.PROCESSORS)
    row = _named_rows(table, provider, np.where(cpu_model == "", name, ""))
    stated = np.array([*table["cpu_model"], ""])[row]
    return np.where(cpu_model == "", stated, cpu_model), _pages(table)[row]


def _burst_columns(
    path: Path | None, provider: Texts, name: Texts
) -> tuple[dict[str, NDArray[Any]], Floats]:
    """Return how the types compute for longer: columns of ``TypeColumns``, and one more.

    ``burstable.csv`` says which share of each virtual CPU lasts on types that burst, and what
    happens beyond it. The last column is the share of a virtual CPU that a type had when CoreMark
    was measured.

    Raises CatalogueError as ``_processor_columns``.

    ``path``: the file of ``files.BURSTABLE``; without it no type is known to burst.
    """
    table = _table_or_none(path, files.BURSTABLE)
    row = _named_rows(table, provider, name)

    def of_rows(column: str, others: float) -> Floats:
        return np.append(table[column], others)[row]

    baseline = of_rows("vcpu_baseline", 1.0)
    is_at_baseline = np.array([*table["coremark_at"], ""])[row] == "baseline"
    columns = {
        "cpu_baseline": baseline,
        "cpu_launch_h": np.nan_to_num(of_rows("launch_credits", 0.0)) / _CREDITS_PER_H,
        "cpu_surplus_usd_per_h": of_rows("surplus_usd_per_vcpu_h", np.nan),
        "cpu_baseline_source": _pages(table)[row],
    }
    return columns, np.where(is_at_baseline, baseline, 1.0)


def _table_or_none(path: Path | None, columns: Sequence[Column]) -> Mapping[str, Values]:
    if path is not None:
        return read(path, columns)
    return {column.name: np.empty(0) if column.is_number else [] for column in columns}


def _named_rows(table: Mapping[str, Values], provider: Texts, name: Texts) -> Ints:
    """Return the row of each type, the number of rows where none fits.

    Rows are globs of names; the first that fits counts.
    """
    owners, globs = table["provider"], table["instance_types"]
    row = np.full(len(name), len(globs))
    for owner in sorted(set(owners)):
        own = [at for at, one in enumerate(owners) if one == owner]
        fits = re.compile("|".join(f"({translate(globs[at])})" for at in own)).match
        for at in np.flatnonzero(provider == owner).tolist():
            found = fits(name[at])
            if found is not None:
                row[at] = own[(found.lastindex or 1) - 1]
    return row


def _pages(table: Mapping[str, Values]) -> Texts:
    """Return the page of every row with its licence and day, and nothing for no row."""
    columns = (table[name] for name in ("source", "licence", "as_of"))
    cells = zip(*columns, strict=True)
    return np.array([*(f"{page} ({licence}; {day})" for page, licence, day in cells), ""])
