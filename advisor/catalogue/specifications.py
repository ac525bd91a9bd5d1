"""Build the type columns: what providers state, and what others measured to fill the holes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.catalogue import files, speeds
from advisor.catalogue.columns import Floats, Texts, TypeColumns
from advisor.catalogue.networks import network_columns
from advisor.catalogue.nouns import Accelerator
from advisor.catalogue.tables import Values, numbers, read, texts
from advisor.errors import CatalogueError
from advisor.planners.core.units import GB, GIB


def build_types(
    table: Mapping[str, Values],
    share_alike: Path | None,
    networks: Path | None,
    accelerators: Mapping[str, Accelerator],
) -> TypeColumns:
    """Join the providers' statements with the measured table.

    Raises CatalogueError if a type has an accelerator that nobody describes.

    Parameters
    ----------
    share_alike : Path or None
        The file of ``files.SHARE_ALIKE_SPECIFICATIONS``; without it those facts stay unknown.
    networks : Path or None
        The file of ``files.NETWORKS``, likewise.
    """
    provider, name = np.array(texts(table, "provider")), np.array(texts(table, "instance_type"))
    extra = _measured(share_alike, provider, name)
    stated_model = np.array(texts(table, "cpu_model"))
    cpu_model = np.where(stated_model == "", extra.texts["cpu_model"], stated_model)
    accelerator = np.array(texts(table, "accelerator"))
    core_speed, core_speed_source = speeds.fill(
        provider,
        name,
        cpu_model,
        numbers(table, "coremark_per_vcpu"),
        extra.numbers["coremark_per_vcpu_converted"],
    )
    network = network_columns(
        networks, provider, name,
        gbps=numbers(table, "network_gbps"),
        baseline_gbps=numbers(table, "network_baseline_gbps"),
        rdma=np.array(texts(table, "rdma")),
    )  # fmt: skip
    return TypeColumns(
        provider=provider,
        name=name,
        vcpus=_filled(numbers(table, "vcpus"), extra.numbers["vcpus"]),
        memory_bytes=GIB * _filled(numbers(table, "memory_gib"), extra.numbers["memory_gib"]),
        accelerator=accelerator,
        accelerator_count=numbers(table, "accelerator_count"),
        accelerator_memory_bytes=_accelerator_memory(accelerator, accelerators),
        network_bytes_per_s=network.bytes_per_s,
        network_burst_bytes_per_s=network.burst_bytes_per_s,
        network_source=network.source,
        rdma=network.rdma,
        is_rdma=network.is_rdma,
        intra_node_link=np.array(texts(table, "intra_node_link")),
        intra_node_bytes_per_s=GB * extra.numbers["intra_node_gbs"],
        intra_node_basis=extra.texts["intra_node_basis"],
        host_device_bytes_per_s=GB * extra.numbers["host_device_gbs"],
        host_device_basis=extra.texts["host_device_basis"],
        core_speed=core_speed,
        core_speed_source=core_speed_source,
        cpu_model=cpu_model,
        cpu_arch=np.array(texts(table, "cpu_arch")),
        local_ssd_bytes=GB * numbers(table, "local_ssd_gb"),
        source=np.array(texts(table, "source")),
    )


@dataclass(frozen=True, slots=True)
class _Extra:
    """Columns of the share-alike table, spread over all types."""

    texts: dict[str, Texts]
    numbers: dict[str, Floats]


def _measured(path: Path | None, provider: Texts, name: Texts) -> _Extra:
    table = read(path, files.SHARE_ALIKE_SPECIFICATIONS) if path else {}
    rows: dict[tuple[str, str], int] = {}
    if table:
        pairs = zip(texts(table, "provider"), texts(table, "instance_type"), strict=True)
        rows = {pair: at for at, pair in enumerate(pairs)}
    keys = zip(provider.tolist(), name.tolist(), strict=True)
    at = np.array([rows.get(key, len(rows)) for key in keys], dtype=np.int64)
    out = _Extra({}, {})
    for column in files.SHARE_ALIKE_SPECIFICATIONS[2:]:
        if column.is_number:
            known = numbers(table, column.name) if table else np.empty(0)
            out.numbers[column.name] = np.append(known, np.nan)[at]
        else:
            words = texts(table, column.name) if table else []
            out.texts[column.name] = np.array([*words, ""])[at]
    return out


def _filled(values: Floats, others: Floats) -> Floats:
    return np.where(np.isnan(values), others, values)


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
