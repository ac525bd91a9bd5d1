"""Prices and facts known from elsewhere, one a line.

List prices as published by the providers, typed from memory by the collector of the data and
checked there (reference notes, section 3: 38 of 39 within 0.5 %), and where marked from a source
that the catalogue was not made of.
"""

from __future__ import annotations

import csv

import numpy as np
import pytest

from advisor.catalogue import Catalogue, OfferFilter, files, snapshot
from advisor.lab.catalogue import build

LIST_PRICES = [
    ("aws", "m5.large", "us-east-1", 0.096),
    ("aws", "c5.xlarge", "us-east-1", 0.17),
    ("aws", "c6i.16xlarge", "us-west-2", 2.72),
    ("aws", "r5.large", "us-east-1", 0.126),
    ("aws", "t3.medium", "us-east-1", 0.0416),
    ("aws", "g4dn.xlarge", "us-east-1", 0.526),
    ("aws", "g5.xlarge", "us-east-1", 1.006),
    ("aws", "g5.48xlarge", "us-east-1", 16.288),
    ("aws", "g6.xlarge", "us-east-1", 0.8048),
    ("aws", "p3.2xlarge", "us-east-1", 3.06),
    ("aws", "p3.16xlarge", "us-east-1", 24.48),
    ("aws", "p4d.24xlarge", "us-east-1", 21.957642),  # AWS's page of 2026-07-24
    ("aws", "p5.48xlarge", "us-east-1", 55.04),  # AWS's page of 2026-09-10
    ("aws", "p5.48xlarge", "us-west-1", 68.80),  # dstack#3264, 2025-11
    ("aws", "p5.48xlarge", "ca-central-1", 63.296),  # dstack#3264, 2025-11
    ("aws", "trn1.32xlarge", "us-east-1", 21.50),
    ("aws", "inf2.xlarge", "us-east-1", 0.7582),
    ("gcp", "n1-standard-4", "us-central1", 0.19),
    ("gcp", "e2-standard-4", "us-central1", 0.134),
    ("gcp", "n2-standard-8", "us-central1", 0.3885),
    ("gcp", "a2-highgpu-1g", "us-central1", 3.673385),
    ("gcp", "a2-highgpu-8g", "us-central1", 29.387),
    ("gcp", "a2-ultragpu-1g", "us-central1", 5.0688),
    ("gcp", "g2-standard-4", "us-central1", 0.7068),
    ("gcp", "a3-highgpu-8g", "us-central1", 88.49),
    ("azure", "Standard_D4s_v5", "eastus", 0.192),
    ("azure", "Standard_F4s_v2", "eastus", 0.169),
    ("azure", "Standard_NC6s_v3", "eastus", 3.06),
    ("azure", "Standard_NC24ads_A100_v4", "eastus", 3.673),
    ("azure", "Standard_ND96asr_v4", "eastus", 27.197),
    ("azure", "Standard_ND96isr_H100_v5", "eastus", 98.32),
    ("azure", "Standard_NC4as_T4_v3", "eastus", 0.526),
]

# Host and attached accelerator are priced apart in Google's list: the sum, us-central1.
N1_WITH_GPU = [
    ("n1-standard-8+1xV100", 0.38 + 2.48),
    ("n1-standard-4+1xT4", 0.19 + 0.35),
    ("n1-standard-4+1xP4", 0.19 + 0.60),
    ("n1-standard-8+1xP100", 0.38 + 1.46),
    ("n1-standard-96+8xV100", 4.56 + 8 * 2.48),
]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(snapshot.bundled_folder(), with_overrides=False)


def on_demand(catalogue: Catalogue, provider: str, name: str, region: str) -> float:
    wanted = OfferFilter(
        providers=(provider,),
        types=(name,),
        regions=(region,),
        pricing=["on-demand"],
        listings=(),  # P3 is retired in us-east-1; its price is known all the same
    )
    found = catalogue.select(wanted).price_usd_per_h
    assert len(found) == 1
    return float(found[0])


@pytest.mark.parametrize(("provider", "name", "region", "usd"), LIST_PRICES)
def test_a_list_price_known_from_elsewhere(
    catalogue: Catalogue, provider: str, name: str, region: str, usd: float
) -> None:
    assert on_demand(catalogue, provider, name, region) == pytest.approx(usd, rel=0.005)


@pytest.mark.parametrize(("name", "usd"), N1_WITH_GPU)
def test_an_attached_accelerator_is_added_to_its_host(
    catalogue: Catalogue, name: str, usd: float
) -> None:
    assert on_demand(catalogue, "gcp", name, "us-central1") == pytest.approx(usd, rel=0.005)


# Datasheets: GB, GB/s, dense Tflop/s in bf16 (fp16 for Volta and Turing) and fp32.
DATASHEETS = [
    ("V100-SXM2-16GB", 16, 900, 125, 15.7),
    ("T4", 16, 320, 65, 8.1),
    ("A10", 24, 600, 125, 31.2),
    ("L4", 24, 300, 121, 30.3),
    ("L40S", 48, 864, 362, 91.6),
    ("A100-SXM4-40GB", 40, 1555, 312, 19.5),
    ("A100-SXM4-80GB", 80, 2039, 312, 19.5),
    ("H100-SXM5-80GB", 80, 3350, 989, 67),
    ("H200-SXM-141GB", 141, 4800, 989, 67),
    ("MI300X", 192, 5300, 1307, 163.4),
    ("B200-SXM-180GB", 180, 8000, 2250, 75),
    ("TPU-v5e", 16, 819, 197, None),
]


@pytest.mark.parametrize(("name", "gb", "gb_per_s", "half", "fp32"), DATASHEETS)
def test_an_accelerator_is_as_its_datasheet_says(
    catalogue: Catalogue, name: str, gb: float, gb_per_s: float, half: float, fp32: float | None
) -> None:
    one = catalogue.accelerators[name]
    assert one.memory_gb == gb
    assert one.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=0.01)
    peak = one.peak_flop_per_s("bf16") or one.peak_flop_per_s("fp16")
    assert peak == pytest.approx(half * 1e12, rel=0.01)
    assert one.peak_flop_per_s("fp32") == (
        None if fp32 is None else pytest.approx(fp32 * 1e12, rel=0.01)
    )


def test_peaks_are_dense_and_every_faster_precision_is_faster(catalogue: Catalogue) -> None:
    """A sparse figure in a dense column would show as twice too much against its neighbour."""
    for one in catalogue.accelerators.values():
        tf32, bf16, fp8 = map(one.peak_flop_per_s, ("tf32", "bf16", "fp8"))
        if bf16 and fp8 and one.vendor == "NVIDIA":
            assert fp8 <= 2.1 * bf16, one.name
        if bf16 and tf32 and one.vendor == "NVIDIA":
            assert bf16 <= 2.1 * tf32, one.name
        if one.sustained_bf16_flop_per_s:
            assert bf16 is not None
            assert one.sustained_bf16_flop_per_s <= bf16, one.name


# Measured copies (nvbandwidth on the instances; reference notes, section 4): GB/s from the host,
# and the range between two devices over the sizes of the family.
LINKS = [
    ("aws", "p3.16xlarge", 11.1, (24.2, 48.1)),
    ("gcp", "a2-highgpu-8g", 12.35, (255, 268)),
    ("gcp", "a3-highgpu-8g", 27.7, (370, 396)),
    ("gcp", "g2-standard-96", 12.35, (9.8, 10.3)),
    ("azure", "Standard_NC48ads_A100_v4", 26.7, (269, 269)),
    ("aws", "g5.12xlarge", 13.47, None),
    ("aws", "g4dn.12xlarge", 6.27, None),
]


@pytest.mark.parametrize(("provider", "name", "host", "pair"), LINKS)
def test_a_link_is_as_measured(
    catalogue: Catalogue, provider: str, name: str, host: float, pair: tuple[float, float] | None
) -> None:
    one = catalogue.instance_type(name, provider=provider)
    assert one.host_device_bytes_per_s == pytest.approx(host * 1e9, rel=0.02)
    measured = one.intra_node_bytes_per_s
    if pair is None:
        assert measured is None  # through host memory: no direct path was found
    else:
        assert measured is not None
        assert pair[0] <= measured / 1e9 <= pair[1]


def test_the_networks_of_training_machines_are_those_advertised(catalogue: Catalogue) -> None:
    expected = {
        ("aws", "p4d.24xlarge"): (400, True),
        ("aws", "p5.48xlarge"): (3200, True),
        ("aws", "g5.xlarge"): (2.5, False),  # up to 10 Gbit/s: the baseline is what lasts
        ("gcp", "a3-megagpu-8g"): (1600, True),  # GPUDirect-TCPXO
        ("azure", "Standard_ND96isr_H100_v5"): (3200, True),  # eight InfiniBand ports
        ("azure", "Standard_ND96asr_v4"): (1600, True),
    }
    for (provider, name), (gbit_per_s, is_rdma) in expected.items():
        one = catalogue.instance_type(name, provider=provider)
        assert one.network_bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8), name
        assert (one.rdma_share == 1.0) == is_rdma, name


def test_vcpus_differ_threefold_in_speed_inside_one_provider(catalogue: Catalogue) -> None:
    types = catalogue.types
    rows = (types.provider == "aws") & (types.core_speed_source == "measured")
    low, high = np.percentile(types.core_speed[rows], [5, 95])
    assert low == pytest.approx(13.2e3, rel=0.02)
    assert high == pytest.approx(36.2e3, rel=0.02)


# Nothing was found of these; none of them trains a PyTorch script unchanged but the first.
UNCHECKED = {
    "Qualcomm-AI100", "FPGA-VU9P", "FPGA-VU47P", "FPGA-U250", "Media-U30", "Media-MA35D",
}  # fmt: skip


def test_only_accelerators_that_nobody_trains_on_are_unchecked(catalogue: Catalogue) -> None:
    unchecked = [one for one in catalogue.accelerators.values() if not one.is_checked]
    assert {one.name for one in unchecked} == UNCHECKED
    assert {one.training_use for one in unchecked} == {"no"}
    assert all(one.source_1 for one in catalogue.accelerators.values())


def test_other_tables_agree_or_a_note_says_why_ours_stays() -> None:
    folder = snapshot.bundled_folder()
    rows: dict[str, dict[str, str]] = {}
    for name in (files.ACCELERATORS_FILE, files.UNCONFIRMED_ACCELERATORS_FILE):
        with (folder / name).open(newline="") as file:
            rows |= {row["name"]: row for row in csv.DictReader(file)}
    checks = build.read_checks(folder)
    compared = [(rows[name], check) for name, found in checks.items() for check in found]
    assert len(compared) > 500
    differing = [(row["name"], check) for row, check in compared if not build.agrees(check, row)]
    assert len(differing) <= 0.05 * len(compared)
    assert all(check.note for _, check in differing)
    assert not [check for row, check in compared if check.note and build.agrees(check, row)]
