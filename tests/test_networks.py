"""Laws of the networks between instances: facts, assumptions and what the user sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advisor.ask import Constraints
from advisor.catalogue import Catalogue, parse_gpus
from advisor.catalogue.networks import assumed_networks, front_end_bytes_per_s, rate_of, size_class
from advisor.catalogue.rows import TypeRow
from advisor.errors import CatalogueError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.lab.catalogue.networks import base_size, network_rows
from advisor.machines.fleet import assumed_network_log_sd, catalogue_fleet
from advisor.rank.ranking import recommend

GBIT = 1e9 / 8


@pytest.fixture(scope="module")
def plain() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def overridden(folder: Path, *rows: str) -> Catalogue:
    path = folder / "overrides.csv"
    path.write_text("\n".join(["rule,provider,instance_type,network_gbps,rdma", *rows]))
    return Catalogue.load(overrides=path)


def test_a_stated_network_is_kept_and_an_unknown_one_is_marked(plain: Catalogue) -> None:
    machines = catalogue_fleet(plain)
    stated = plain.types.network_bytes_per_s
    known = ~np.isnan(stated)
    assert (machines.network_bytes_per_s[known] == stated[known]).all()
    assert (machines.is_network_assumed == ~known).all()
    assert (machines.network_log_sd[known] == 0).all()
    assert (machines.network_log_sd[~known] > 0).all()
    assert (machines.network_bytes_per_s > 0).all()
    assert 0 < np.count_nonzero(~known) < 0.1 * len(known)


def test_what_is_assumed_is_at_most_the_median_of_its_peers(plain: Catalogue) -> None:
    types = plain.types
    found = assumed_networks(types)
    front = front_end_bytes_per_s(types)
    classes = size_class(types.accelerator_count)
    known = ~found.is_assumed
    compared = 0
    for row in np.flatnonzero(found.is_assumed):
        ratio = types.vcpus / types.vcpus[row]
        peers = known & (classes == classes[row]) & (ratio >= 0.5) & (ratio <= 2)
        if peers.sum() < 10:
            continue
        compared += 1
        # Every provider weighs the same: the median over providers of their medians.
        medians = [
            np.median(front[peers & (types.provider == provider)])
            for provider in set(types.provider[peers].tolist())
        ]
        assert found.bytes_per_s[row] <= max(medians) * (1 + 1e-12)
        assert front[peers].min() * (1 - 1e-12) <= found.bytes_per_s[row]
        assert found.bytes_per_s[row] <= np.median(types.network_bytes_per_s[peers]) * (1 + 1e-12)
    assert compared > 100


def test_forgetting_a_provider_assumes_less_than_it_has_for_most_accelerated_types(
    plain: Catalogue,
) -> None:
    types = plain.types
    for provider in ("gcp", "azure"):
        rows = (
            (types.provider == provider)
            & (types.accelerator_count > 0)
            & ~np.isnan(types.network_bytes_per_s)
        )
        network = np.where(types.provider == provider, np.nan, types.network_bytes_per_s)
        found = assumed_networks(replace(types, network_bytes_per_s=network))
        assert found.is_assumed[rows].all()
        assert (found.bytes_per_s[rows] <= types.network_bytes_per_s[rows]).mean() > 0.7


def test_a_catalogue_that_knows_no_network_still_assumes_one(plain: Catalogue) -> None:
    types = plain.types.take(np.arange(5))
    found = assumed_networks(replace(types, network_bytes_per_s=np.full(5, np.nan)))
    assert (found.bytes_per_s > 0).all()
    assert (found.log_sd > 0).all()


def test_an_assumed_network_widens_by_the_share_of_the_step_that_waits_for_it(
    plain: Catalogue,
) -> None:
    machines = catalogue_fleet(plain)
    assumed = int(np.flatnonzero(machines.is_network_assumed)[0])
    known = int(np.flatnonzero(~machines.is_network_assumed)[0])
    rows = np.array([assumed, assumed, assumed, known])
    count = np.array([1, 2, 2, 2])
    sd = assumed_network_log_sd(machines, rows, count, np.array([0.5, 0.25, 0.5, 0.5]))
    assert sd[0] == sd[3] == 0
    assert sd[1] == pytest.approx(0.25 * machines.network_log_sd[assumed])
    assert sd[2] == pytest.approx(2 * sd[1])


def test_the_rate_in_a_transports_name_is_that_of_all_ports() -> None:
    names = ("IB-NDR-8x400", "IB-EDR-100", "IB-200", "RoCE-1600", "EFA", "GPUDirect-TCPX", "")
    assert [rate_of(name) for name in names] == [3200, 100, 200, 1600, None, None, None]


@pytest.mark.parametrize(
    ("provider", "name", "gbit_per_s", "is_rdma"),
    [
        ("azure", "Standard_D4s_v5", 12.5, False),
        ("azure", "Standard_HB120rs_v3", 200, True),
        ("azure", "Standard_E16-4ads_v5", 12.5, False),  # stated of Standard_E16ads_v5
        ("azure", "Standard_ND96isr_H100_v5", 3200, True),
        ("oci", "BM.GPU.H100.8", 3200, True),
        ("oci", "VM.GPU.A10.1", 24, False),
        ("nebius", "gpu-h200-sxm_8gpu-128vcpu-1600gb", 3200, True),
        ("scaleway", "L40Sx2", 5, False),
    ],
)
def test_networks_are_those_of_the_providers_pages(
    plain: Catalogue, provider: str, name: str, gbit_per_s: float, is_rdma: bool
) -> None:
    one = plain.instance_type(name, provider=provider)
    assert one.network_bytes_per_s == pytest.approx(gbit_per_s * GBIT)
    assert one.is_rdma == is_rdma
    assert "2026-11-21" in one.network_source


def test_a_variant_of_a_size_has_the_network_of_its_base(plain: Catalogue) -> None:
    types = plain.types
    known = dict(zip(types.name.tolist(), types.network_bytes_per_s.tolist(), strict=True))
    azure = types.name[types.provider == "azure"].tolist()
    variants = [name for name in azure if base_size(name) in known and base_size(name) != name]
    assert len(variants) > 200
    for name in variants:
        if not np.isnan(known[base_size(name)]):
            assert known[name] == known[base_size(name)], name


def test_a_page_of_a_series_fills_only_its_largest_size_and_only_a_hole(tmp_path: Path) -> None:
    empty = "instance_type,network_gbit_per_s,rdma_gbit_per_s,source_page,source_commit,licence\n"
    for name in ("network_azure.csv", "network_azure_older.csv"):
        (tmp_path / name).write_text(empty)
    (tmp_path / "network_other.csv").write_text(
        "provider,instance_type,network_gbit_per_s,rdma_gbit_per_s,source_url,page_says,accessed\n"
        "gcp,g4-* (largest),400,,https://x,Up to 400 Gbps,2026-11-21\n"
        "gcp,g2-* (largest),100,,https://x,Up to 100 Gbps,2026-11-21\n"
    )

    def row(name: str, vcpus: float, gbps: float | None = None) -> TypeRow:
        return TypeRow(provider="gcp", instance_type=name, vcpus=vcpus, network_gbps=gbps)

    types = [row("g4-standard-48", 48), row("g4-standard-384", 384), row("g2-standard-96", 96, 99)]
    found = network_rows(tmp_path, types)
    assert [(one.instance_type, one.network_gbps) for one in found] == [("g4-standard-384", 400)]
    assert found[0].basis == "stated of g4-* (largest)"


def test_the_user_may_state_a_network(tmp_path: Path, plain: Catalogue) -> None:
    before = plain.instance_type("gpu_8x_h100_sxm5", provider="lambda")
    assert before.network_bytes_per_s is None
    catalogue = overridden(tmp_path, "network,lambda,gpu_8x_h100*,100,IB-NDR-8x400")
    after = catalogue.instance_type("gpu_8x_h100_sxm5", provider="lambda")
    assert after.network_bytes_per_s == pytest.approx(3200 * GBIT)
    assert after.is_rdma
    assert after.network_source == "overrides.csv, row 2"
    machines = catalogue_fleet(catalogue)
    assert not machines.is_network_assumed[after.index]
    assert machines.network_bytes_per_s[after.index] == pytest.approx(3200 * GBIT)
    others = np.arange(len(plain.types)) != after.index
    assert np.array_equal(
        plain.types.network_bytes_per_s[others],
        catalogue.types.network_bytes_per_s[others],
        equal_nan=True,
    )


@pytest.mark.parametrize("row", ["network,lambda,gpu_*,,", "network,lambda,gpu_*,0,EFA"])
def test_a_network_rule_without_a_rate_is_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(CatalogueError, match=r"row 2, column 'network_gbps'"):
        overridden(tmp_path, row)


def test_assumed_networks_are_listed_marked_and_left_out_on_request(
    make_job: Callable[..., Job], plain: Catalogue
) -> None:
    predictor, job = Predictor(plain, learned=None), make_job(global_batch=16_384)
    anything = Constraints(
        least_gain_fraction=0.0, providers=("lambda",), gpus=parse_gpus("A100:8"), top=500
    )
    listed = recommend(job, anything, predictor=predictor)
    marked = [one for one in listed.front if one.is_network_assumed]
    assert marked
    assert "network_unknown" not in listed.rejected
    for one in listed.front:
        assert one.is_network_assumed == (one.configuration.parts[0][1] > 1)
        assert one.to_record()["network_assumed"] == one.is_network_assumed
        assert any("network assumed" in r for r in one.reasons) == one.is_network_assumed
    known = recommend(job, replace(anything, known_network=True), predictor=predictor)
    assert known.front
    assert not any(one.is_network_assumed for one in known.front)
    assert known.rejected["network_unknown"] > 0
    assert known.considered == listed.considered


def test_stating_the_assumed_network_keeps_the_step_and_narrows_its_interval(
    make_job: Callable[..., Job], plain: Catalogue, tmp_path: Path
) -> None:
    job, name = make_job(), "gpu_8x_a100"
    row = plain.instance_type(name, provider="lambda").index
    gbps = float(catalogue_fleet(plain).network_bytes_per_s[row]) / GBIT
    stated = overridden(tmp_path, f"network,lambda,{name},{gbps!r},")
    assumed, known = (
        Predictor(one, learned=None).predict(job, name, count=4) for one in (plain, stated)
    )
    assert assumed.is_network_assumed
    assert not known.is_network_assumed
    assert known.step_time_s.value == pytest.approx(assumed.step_time_s.value, rel=1e-9)
    assert assumed.shares["network"] > 0
    widths = [
        np.log(one.step_time_s.high / one.step_time_s.low) / (2 * 1.6449)
        for one in (assumed, known)
    ]
    added = np.sqrt(widths[0] ** 2 - widths[1] ** 2)
    expected = assumed.shares["network"] * catalogue_fleet(plain).network_log_sd[row]
    assert added == pytest.approx(expected, rel=1e-3)
    slower = overridden(tmp_path, f"network,lambda,{name},{gbps / 10!r},")
    worse = Predictor(slower, learned=None).predict(job, name, count=4)
    assert worse.step_time_s.value > 1.1 * known.step_time_s.value
