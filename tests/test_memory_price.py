"""What memory costs an hour: by the catalogue's own offers that differ in memory alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from advisor.catalogue import Catalogue, OfferFilter, Pricing, resource_prices
from advisor.errors import UsageError
from advisor.planners.core import GIB

PAID: tuple[Pricing, ...] = ("on-demand",)
ALIKE = (
    "provider", "vcpus", "cpu_model", "local_ssd_bytes", "network_bytes_per_s", "cpu_baseline",
)  # fmt: skip


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def test_it_is_the_median_slope_of_offers_that_differ_in_memory_alone(
    catalogue: Catalogue,
) -> None:
    """A slow twin, an offer at a time."""
    types, groups = catalogue.types, defaultdict(list)
    offers = catalogue.select(OfferFilter(pricing=PAID))
    for kind, region, usd in zip(
        offers.type_index.tolist(), offers.region_index.tolist(),
        offers.price_usd_per_h.tolist(), strict=True,
    ):  # fmt: skip
        of = [getattr(types, name)[kind] for name in ALIKE]
        alike = tuple("nan" if one != one else str(one) for one in of)
        if types.accelerator_count[kind] == 0 and types.cpu_model[kind]:
            groups[(*alike, region)].append((types.memory_bytes[kind] / GIB, usd))
    slopes = [
        np.polyfit([memory for memory, _ in rows], [usd for _, usd in rows], 1)[0]
        for rows in groups.values() if len({round(memory, 6) for memory, _ in rows}) > 1
    ]  # fmt: skip
    found = resource_prices(catalogue)
    assert found["usd_per_gib_h"] == pytest.approx(np.median(slopes), rel=1e-3)
    assert f"{len(slopes):,} groups" in found["source"]
    assert found["usd_per_gib_h_low"] < found["usd_per_gib_h"] < found["usd_per_gib_h_high"]


def test_two_types_of_one_family_lie_in_its_range(catalogue: Catalogue) -> None:
    found, prices = resource_prices(catalogue), []
    for name in ("m6i.xlarge", "r6i.xlarge"):
        wanted = OfferFilter(providers=("aws",), types=(name,), pricing=PAID)
        offers = catalogue.select(wanted)
        row = catalogue.instance_type(name, provider="aws")
        prices.append(((row.memory_bytes or 0.0) / GIB, float(offers.price_usd_per_h.min())))
    (less, cheap), (more, dear) = prices
    own = (dear - cheap) / (more - less)
    assert found["usd_per_gib_h_low"] / 1.5 < own < found["usd_per_gib_h_high"] * 1.5


def test_offers_that_differ_in_more_say_nothing(catalogue: Catalogue) -> None:
    rows = np.flatnonzero(catalogue.types.accelerator_count[catalogue.prices.type_index] > 0)
    few = replace(catalogue, prices=catalogue.prices.take(rows))
    with pytest.raises(UsageError, match="differ in memory alone"):
        resource_prices(few)
