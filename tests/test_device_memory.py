"""Every accelerator has one memory, whoever is asked."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from advisor import data
from advisor.catalogue import Catalogue, shipped
from advisor.catalogue.accelerators import memory_gib
from advisor.machines.fleet import catalogue_fleet


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def rows() -> list[dict[str, str]]:
    folder = data.root("datasets") / "catalogue"
    found: list[dict[str, str]] = []
    for name in ("accelerators.csv", "accelerators.techpowerup.csv"):
        with (folder / name).open(newline="") as file:
            found += csv.DictReader(file)
    return found


def test_every_accelerator_has_one_memory_in_all_places(catalogue: Catalogue) -> None:
    for name, row in shipped().items():
        assert row.device is None or row.device.memory_bytes == row.memory_bytes, name
        assert catalogue.accelerators.get(name, row) == row


def test_types_and_fleet_have_the_memory_of_their_accelerator(catalogue: Catalogue) -> None:
    types, machines = catalogue.types, catalogue_fleet(catalogue)
    checked = 0
    for at in np.flatnonzero((types.accelerator_count >= 1) & (machines.device >= 0)).tolist():
        expected = shipped()[str(types.accelerator[at])].memory_bytes
        assert types.accelerator_memory_bytes[at] == expected
        assert machines.devices[machines.device[at]].memory_bytes == expected
        checked += 1
    assert checked > 300


def test_forms_of_a_chip_with_as_much_memory_sold_have_as_much() -> None:
    gib = {name: row.memory_gib for name, row in shipped().items()}
    for one, other in (
        ("V100-PCIe-16GB", "V100-SXM2-16GB"),
        ("V100-PCIe-32GB", "V100-SXM2-32GB"),
        ("A100-PCIe-40GB", "A100-SXM4-40GB"),
        ("A100-PCIe-80GB", "A100-SXM4-80GB"),
        ("H100-PCIe-80GB", "H100-SXM5-80GB"),
        ("T4", "T4g"),
    ):
        assert gib[one] == pytest.approx(gib[other], rel=0.005), (one, other)


def test_a_program_never_gets_more_than_there_is() -> None:
    for row in rows():
        name, gib = row["name"], shipped()[row["name"]].memory_gib
        sold = float(row["memory_gb"]) / float(row["dies"] or 1)
        assert 0.85 * sold < gib < sold, name
        if row["nvidia_smi_gib"]:
            assert gib < float(row["nvidia_smi_gib"]), name
        assert shipped()[name].memory_basis == "sold" or row["memory_source"], name


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
