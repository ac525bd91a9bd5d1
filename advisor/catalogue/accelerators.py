"""Read the accelerators and their other names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.catalogue import files
from advisor.catalogue.device_memory import memory_bytes
from advisor.catalogue.gpus import key
from advisor.catalogue.nouns import Accelerator
from advisor.catalogue.tables import known, numbers, read, texts
from advisor.errors import CatalogueError
from advisor.planners.core.units import GB, TERA


def read_accelerators(path: Path, share_alike: Path | None) -> dict[str, Accelerator]:
    """Read the accelerators; measured rates come from the share-alike file where there is one.

    Raises CatalogueError if a file cannot be read or a cell breaks its rule.
    """
    table = read(path, files.ACCELERATORS)
    sustained = _sustained(share_alike)
    rows = zip(*(list(values) for values in table.values()), strict=True)
    made = (_accelerator(dict(zip(table, row, strict=True)), sustained) for row in rows)
    return {one.name: one for one in made}


def _sustained(path: Path | None) -> dict[str, tuple[float, float]]:
    if path is None:
        return {}
    table = read(path, files.SHARE_ALIKE_ACCELERATORS)
    rates = zip(
        numbers(table, "bf16_matmul_measured_tflops").tolist(),
        numbers(table, "fp8_matmul_measured_tflops").tolist(),
        strict=True,
    )
    return dict(zip(texts(table, "name"), rates, strict=True))


def _accelerator(
    row: Mapping[str, Any], sustained: Mapping[str, tuple[float, float]]
) -> Accelerator:
    def scaled(name: str, unit: float = 1.0) -> float | None:
        return known(row[name], unit)

    bf16, fp8 = sustained.get(row["name"], (np.nan, np.nan))
    year, joined = scaled("release_year"), scaled("interconnect_devices")
    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        form=row["form"],
        memory_gb=float(row["memory_gb"]),
        memory_bytes=memory_bytes(row["name"], float(row["memory_gb"])),
        memory_bytes_per_s=scaled("memory_bandwidth_gbs", GB),
        fp32_flop_per_s=scaled("fp32_tflops", TERA),
        tf32_flop_per_s=scaled("tf32_tflops", TERA),
        fp16_flop_per_s=scaled("fp16_tflops", TERA),
        bf16_flop_per_s=scaled("bf16_tflops", TERA),
        fp8_flop_per_s=scaled("fp8_tflops", TERA),
        int8_op_per_s=scaled("int8_tops", TERA),
        sustained_bf16_flop_per_s=known(bf16, TERA),
        sustained_fp8_flop_per_s=known(fp8, TERA),
        tdp_w=scaled("tdp_w"),
        link="" if row["interconnect"] == "none" else row["interconnect"],
        link_bytes_per_s=scaled("interconnect_gbs_per_direction", GB),
        link_devices=None if joined is None else int(joined),
        pcie_generation=scaled("pcie_gen"),
        compute_capability=scaled("compute_capability"),
        training_use=row["training_use"],
        release_year=None if year is None else int(year),
        source_1=row["source_1"],
        source_2=row["source_2"],
    )


def read_aliases(path: Path, accelerators: Collection[str]) -> dict[str, str]:
    """Read other names, folded for comparison, as a mapping to canonical names.

    Raises CatalogueError if an alias is ambiguous or means an accelerator that does not exist.
    """
    table = read(path, files.ALIASES)
    out: dict[str, str] = {}
    pairs = zip(texts(table, "alias"), texts(table, "name"), strict=True)
    for number, (alias, name) in enumerate(pairs, start=2):
        if name not in accelerators:
            raise CatalogueError(
                f"{path.name}, row {number}, column 'name': no accelerator {name!r}",
                hint="add it to accelerators.csv, or remove the alias",
            )
        if out.setdefault(key(alias), name) != name:
            raise CatalogueError(
                f"{path.name}, row {number}, column 'alias': {alias!r} already means "
                f"{out[key(alias)]!r}",
                hint="keep one of them",
            )
    return out
