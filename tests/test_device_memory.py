"""Every accelerator has one memory, whoever is asked."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from advisor.catalogue import Catalogue, files, snapshot
from advisor.catalogue.specifications import device_memory_bytes, memory_bytes, memory_gib
from advisor.errors import CatalogueError
from advisor.machines.devices import accelerator_devices, catalogue_device, part
from advisor.machines.fleet import catalogue_fleet
from advisor.planners.core.errors import GIB


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def rows() -> list[dict[str, str]]:
    path = snapshot.bundled_folder() / files.ACCELERATOR_MEMORY_FILE
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_accelerator_has_one_memory_in_all_places(catalogue: Catalogue) -> None:
    table = device_memory_bytes()
    assert set(catalogue.accelerators) | set(accelerator_devices()) == set(table)
    for name, device in accelerator_devices().items():
        assert device.memory_bytes == table[name], name
    parts = 0
    for name, row in catalogue.accelerators.items():
        assert row.memory_bytes == table[name], name
        of_row = catalogue_device(row)
        assert of_row is None or of_row.memory_bytes == table[name], name
        try:
            one = part(row)
        except CatalogueError:
            continue
        parts += 1
        assert one.memory_bytes == one.device.memory_bytes == table[name], name
    assert parts > 100


def test_types_and_fleet_have_the_memory_of_their_accelerator(catalogue: Catalogue) -> None:
    types, machines = catalogue.types, catalogue_fleet(catalogue)
    checked = 0
    for at in np.flatnonzero((types.accelerator_count >= 1) & (machines.device >= 0)).tolist():
        expected = device_memory_bytes()[str(types.accelerator[at])]
        assert types.accelerator_memory_bytes[at] == expected
        assert machines.devices[machines.device[at]].memory_bytes == expected
        checked += 1
    assert checked > 300


def test_forms_of_a_chip_with_as_much_memory_sold_have_as_much() -> None:
    gib = {name: size / GIB for name, size in device_memory_bytes().items()}
    for one, other in (
        ("V100-PCIe-16GB", "V100-SXM2-16GB"),
        ("V100-PCIe-32GB", "V100-SXM2-32GB"),
        ("A100-PCIe-40GB", "A100-SXM4-40GB"),
        ("A100-PCIe-80GB", "A100-SXM4-80GB"),
        ("H100-PCIe-80GB", "H100-SXM5-80GB"),
        ("T4", "T4g"),
    ):
        assert gib[one] == pytest.approx(gib[other], rel=0.005), (one, other)


def test_memory_follows_from_the_readings_beside_it() -> None:
    def number(text: str) -> float | None:
        return float(text) if text else None

    for row in rows():
        expected = memory_gib(
            sold_gb=float(row["sold_gb"]),
            nvidia_smi_gib=number(row["nvidia_smi_gib"]),
            cuda_gib=number(row["cuda_gib"]),
            has_ecc_in_memory=row["has_ecc_in_memory"] == "yes",
        )
        assert (float(row["memory_gib"]), row["basis"]) == expected, row["name"]
        assert row["basis"] == "sold" or row["source"], row["name"]


def test_a_program_never_gets_more_than_there_is() -> None:
    for row in rows():
        gib, sold = float(row["memory_gib"]), float(row["sold_gb"])
        assert 0.85 * sold < gib < sold, row["name"]
        if row["nvidia_smi_gib"]:
            assert gib < float(row["nvidia_smi_gib"]), row["name"]


def test_what_the_driver_keeps_is_what_cards_with_both_readings_say() -> None:
    """The rule for cards without a program's reading is no false "fits" for three in four."""
    both = [row for row in rows() if row["cuda_gib"] and row["nvidia_smi_gib"]]
    chips = {(row["cuda_gib"], row["nvidia_smi_gib"]) for row in both}
    assert len(chips) >= 8
    over = [
        memory_gib(
            sold_gb=float(smi), nvidia_smi_gib=float(smi), cuda_gib=None, has_ecc_in_memory=False
        )[0]
        > float(cuda) * 1.001
        for cuda, smi in chips
    ]
    assert sum(over) <= 0.3 * len(chips)


def test_an_accelerator_of_the_users_own_is_taken_for_decimal_gigabytes() -> None:
    assert memory_bytes("somebody's card", 24.0) == 24e9
