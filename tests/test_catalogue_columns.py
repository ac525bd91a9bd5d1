"""The bundled snapshot: its size, its laws, and prices known from elsewhere."""

from __future__ import annotations

import fnmatch
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.catalogue import (
    Catalogue,
    GpuFilter,
    OfferFilter,
    Pricing,
    gpus_text,
    parse_gpus,
    specifications,
)
from advisor.errors import CatalogueError, UsageError


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load()


def test_it_holds_at_least_what_the_issue_asks_for(catalogue: Catalogue) -> None:
    assert len(catalogue.types) >= 3_900
    assert len(set(catalogue.types.provider.tolist())) >= 14
    assert np.isfinite(catalogue.prices.on_demand_usd_per_h).sum() >= 90_000
    assert len(catalogue.accelerators) >= 162


def test_every_pair_of_type_and_region_stands_once(catalogue: Catalogue) -> None:
    prices = catalogue.prices
    pairs = prices.type_index * len(prices.regions) + prices.region_index
    assert len(np.unique(pairs)) == len(pairs)


def test_no_price_is_zero_or_negative_and_no_spot_price_above_on_demand(
    catalogue: Catalogue,
) -> None:
    prices = catalogue.prices
    for usd_per_h in (prices.on_demand_usd_per_h, prices.spot_usd_per_h):
        assert (usd_per_h[~np.isnan(usd_per_h)] > 0).all()
    both = ~np.isnan(prices.spot_usd_per_h)
    assert (prices.spot_usd_per_h[both] <= prices.on_demand_usd_per_h[both]).all()


def test_columns_cannot_be_changed(catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="read-only"):
        catalogue.prices.on_demand_usd_per_h[0] = 0.0


def test_offers_are_exactly_the_rows_a_slow_search_finds(catalogue: Catalogue) -> None:
    wanted = OfferFilter(
        providers=("aws", "gcp"),
        regions=("us-*",),
        gpus=parse_gpus("A100:40GB..80GB:1..8"),
        max_price_usd_per_h=20.0,
        pricing=("on-demand", "spot"),
    )
    offers = catalogue.select(wanted)
    types, prices = catalogue.types, catalogue.prices
    slow = set()
    for row in range(len(prices)):
        at = int(prices.type_index[row])
        name = str(types.accelerator[at])
        if types.provider[at] not in ("aws", "gcp") or not name.startswith("A100-"):
            continue
        region = str(prices.regions[prices.region_index[row]])
        if not region.startswith("us-") or not 1 <= types.accelerator_count[at] <= 8:
            continue
        if prices.provenances[prices.provenance_index[row]].listing == "retired":
            continue
        for pricing, price in (
            ("on-demand", prices.on_demand_usd_per_h[row]),
            ("spot", prices.spot_usd_per_h[row]),
        ):
            if price <= 20.0:
                slow.add((at, region, pricing, float(price)))
    fast = list(
        zip(
            offers.type_index.tolist(),
            offers.region.tolist(),
            offers.pricing.tolist(),
            offers.price_usd_per_h.tolist(),
            strict=True,
        )
    )
    assert slow
    assert len(fast) == len(slow)
    assert set(fast) == slow
    assert offers.price_usd_per_h.tolist() == sorted(offers.price_usd_per_h.tolist())


def test_a_name_alias_or_family_finds_the_accelerator(catalogue: Catalogue) -> None:
    assert catalogue.canonical_gpu("a100-80gb") == "A100-SXM4-80GB"
    assert catalogue.canonical_gpu("Tesla T4") == "T4"
    assert catalogue.canonical_gpu("A100") == "A100-SXM4-40GB"  # what providers mean by it
    assert catalogue.matching_gpus("A100") >= {"A100-SXM4-40GB", "A100-PCIe-80GB"}
    assert catalogue.matching_gpus("rtx 4090") == {"RTX-4090"}
    with pytest.raises(UsageError, match="H10O"):
        catalogue.matching_gpus("H10O")


def test_unknown_names_are_refused_with_close_matches(catalogue: Catalogue) -> None:
    with pytest.raises(CatalogueError) as refused:
        catalogue.instance_type("p4d.24xlrge")
    assert "p4d.24xlarge" in refused.value.hint
    with pytest.raises(UsageError, match="awz"):
        catalogue.select(OfferFilter(providers=("awz",)))


@pytest.mark.parametrize("text", ["A100:", "x:y", "A100:8..1", "", ":8", "A100:0", "A100:8:8"])
def test_nonsense_gpus_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_gpus(text)
    assert refused.value.hint


def test_gpus_are_parsed_as_the_peers_write_them() -> None:
    assert parse_gpus("A100:8") == GpuFilter(names=("A100",), min_count=8, max_count=8)
    assert parse_gpus("24GB..:1") == GpuFilter(min_memory_gb=24, min_count=1, max_count=1)
    assert parse_gpus("H100,H200:..4").names == ("H100", "H200")


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("A100:8,H100:8", ["A100:8", "H100:8"]),
        ("A100:4,H100:8", ["A100:4", "H100:8"]),
        ("T4,L4:1,A100:80GB..:8,H100", ["T4:1", "L4:1", "A100:80GB..:8", "H100"]),
    ],
)
def test_counts_of_their_own_admit_what_each_alone_admits(
    catalogue: Catalogue, text: str, alone: list[str]
) -> None:
    def types(words: str) -> set[int]:
        return set(catalogue.select(OfferFilter(gpus=parse_gpus(words))).type_index.tolist())

    assert types(text) == set.union(*map(types, alone))
    assert parse_gpus(gpus_text(parse_gpus(text))) == parse_gpus(text)


def test_loading_does_not_import_pandas() -> None:
    code = (
        "import sys; from advisor.catalogue import Catalogue; Catalogue.load().select();"
        "sys.exit(any(name in sys.modules for name in ('pandas', 'scipy', 'torch', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_frame_has_one_row_a_price(catalogue: Catalogue) -> None:
    frame = catalogue.to_frame()
    assert len(frame) == len(catalogue.prices)
    row = frame[(frame["name"] == "p4d.24xlarge") & (frame["region"] == "us-east-1")]
    assert row["vcpus"].item() == 96


def test_other_benchmarks_fill_holes_but_never_replace_a_measurement() -> None:
    words = np.array(["p", "p", "p", "p"])
    names = np.array(["a.large", "b.large", "b.small", "c.large"])
    measured = np.array([100.0, np.nan, np.nan, np.nan])
    converted = np.array([50.0, 80.0, np.nan, np.nan])
    speed, source = specifications.fill(words, names, np.array([""] * 4), measured, converted)
    assert speed[:3].tolist() == [100.0, 80.0, 80.0]
    assert np.isnan(speed[3])
    assert source.tolist() == ["measured", "other benchmark", "same family", "unknown"]


@given(st.text(max_size=30))
def test_any_text_is_a_gpu_filter_or_one_usage_error(text: str) -> None:
    try:
        found = parse_gpus(text)
    except UsageError:
        return
    assert found.min_count <= found.max_count
    assert found.min_memory_gb <= found.max_memory_gb
    assert all(found.names)


@given(
    low=st.integers(1, 16),
    high=st.integers(0, 16),
    gb=st.tuples(st.integers(1, 200), st.integers(0, 100)),
)
def test_ranges_are_read_as_written(low: int, high: int, gb: tuple[int, int]) -> None:
    text = f"A100:{gb[0]}GB..{gb[0] + gb[1]}GB:{low}..{low + high}"
    assert parse_gpus(text) == GpuFilter(
        names=("A100",),
        min_count=low,
        max_count=low + high,
        min_memory_gb=gb[0],
        max_memory_gb=gb[0] + gb[1],
    )


SMALL = ["crusoe", "hyperstack", "lambda", "nebius", "oci", "verda"]


@settings(max_examples=40, deadline=None)
@given(
    providers=st.lists(st.sampled_from(SMALL), min_size=1, unique=True),
    min_vcpus=st.sampled_from([0, 8, 30, 100]),
    min_gib=st.sampled_from([0, 64, 500]),
    max_price=st.sampled_from([0.5, 3.0, 30.0, math.inf]),
    pricing=st.sampled_from([["spot"], ["on-demand"], ["on-demand", "spot"], []]),
    region=st.sampled_from(["*", "eu*", "FIN-0?", "nowhere"]),
    is_cpu_only=st.booleans(),
)
def test_every_filter_finds_what_a_slow_search_finds(
    catalogue: Catalogue,
    providers: list[str],
    min_vcpus: float,
    min_gib: float,
    max_price: float,
    pricing: list[Pricing],
    region: str,
    is_cpu_only: bool,
) -> None:
    wanted = OfferFilter(
        providers=providers,
        regions=(region,),
        is_cpu_only=is_cpu_only,
        min_vcpus=min_vcpus,
        min_memory_bytes=min_gib * 2**30,
        max_price_usd_per_h=max_price,
        pricing=pricing,
    )
    offers = catalogue.select(wanted)
    found = [
        (int(kind), int(region), str(way), float(usd_per_h))
        for kind, region, way, usd_per_h in zip(
            offers.type_index,
            offers.region_index,
            offers.pricing,
            offers.price_usd_per_h,
            strict=True,
        )
    ]
    types, prices = catalogue.types, catalogue.prices
    slow = []
    for row in np.flatnonzero(np.isin(types.provider[prices.type_index], providers)).tolist():
        at = int(prices.type_index[row])
        is_wanted = (
            types.vcpus[at] >= min_vcpus
            and types.memory_bytes[at] >= min_gib * 2**30
            and fnmatch.fnmatchcase(str(prices.region[row]), region)
            and not (is_cpu_only and types.accelerator[at])
        )
        slow += [
            (at, int(prices.region_index[row]), way, float(prices.usd_per_h(way)[row]))
            for way in pricing
            if is_wanted and prices.usd_per_h(way)[row] <= max_price
        ]
    assert sorted(found) == sorted(slow)
    assert [usd for *_, usd in found] == sorted(usd for *_, usd in found)
