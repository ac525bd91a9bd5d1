"""Laws of the networks between instances: facts, assumptions and what the user sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advisor.ask import Constraints
from advisor.catalogue import Catalogue, parse_gpus
from advisor.catalogue.networks import (
    KnownNetworks,
    front_end_bytes_per_s,
    rate_of,
    with_assumed_networks,
)
from advisor.catalogue.rows import ListedOffer
from advisor.errors import CatalogueError
from advisor.estimate.predictor import Predictor
from advisor.estimate.ways.model_parallel import network_slope, on_machine
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.lab.catalogue.networks import base_size, network_rows
from advisor.machines.cluster import one_group
from advisor.machines.fleet import assumed_network_log_sd, catalogue_fleet
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.quantities import REACH_90
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


def test_a_low_value_of_machines_of_like_size_is_assumed_without_accelerators(
    plain: Catalogue,
) -> None:
    types = plain.types
    found = with_assumed_networks(types, plain.accelerators)
    front = front_end_bytes_per_s(types)
    plainly = np.nan_to_num(types.accelerator_count) == 0
    known = ~found.is_network_assumed & plainly
    compared = 0
    for row in np.flatnonzero(found.is_network_assumed & plainly):
        ratio = types.vcpus / types.vcpus[row]
        peers = known & (ratio >= 0.5) & (ratio <= 2)
        if peers.sum() < 10:
            continue
        compared += 1
        # Every provider weighs the same: the median over providers of their medians.
        medians = [
            np.median(front[peers & (types.provider == provider)])
            for provider in set(types.provider[peers].tolist())
        ]
        assert front[peers].min() * (1 - 1e-12) <= found.network_bytes_per_s[row]
        assert found.network_bytes_per_s[row] <= max(medians) * (1 + 1e-12)
    assert compared > 100


# Of rented machines: AWS "P5", "P4" and "P6" pages, Google "GPU network bandwidth", Azure's sizes.
@pytest.mark.parametrize(
    ("name", "gbit_per_s"),
    [
        ("p5.48xlarge", 3200), ("p4d.24xlarge", 400), ("p6-b200.48xlarge", 3200),
        ("a3-highgpu-8g", 800), ("a3-megagpu-8g", 1600), ("Standard_ND96isr_H100_v5", 3200),
    ],
)  # fmt: skip
def test_a_named_fabric_is_the_rate_and_is_not_one_stream(
    plain: Catalogue, name: str, gbit_per_s: float
) -> None:
    one = plain.instance_type(name)
    assert one.network_bytes_per_s == pytest.approx(gbit_per_s * GBIT)
    assert one.rdma_share == 1.0


@pytest.mark.parametrize(
    ("cluster", "gbit_per_s"),
    [
        ("8xH100-80GB", 3200), ("8xH200", 3200), ("8xB200", 3200), ("4xGB200", 1600),
        ("8xA100-80GB", 1600), ("8xMI300X", 3200), ("8xL4", 100), ("8xRTX4090", 10),
        ("4xRTX3090", 10), ("4xGH200", 1600),
    ],
)  # fmt: skip
def test_machines_named_by_accelerators_have_the_network_they_are_rented_with(
    plain: Catalogue, cluster: str, gbit_per_s: float
) -> None:
    group = one_group(f"4x{cluster}", plain)
    assert group.node.network.bytes_per_s == pytest.approx(gbit_per_s * GBIT)
    assert group.assumed_network is not None
    # Half to twice of it, nine times of ten, at most.
    assert 0 < REACH_90 * group.assumed_network.log_sd <= np.log(2) + 1e-12
    stated = one_group(f"4x{cluster}@{gbit_per_s}Gbps", plain)
    assert stated.node == group.node
    assert stated.assumed_network is None


def test_an_unstated_type_has_the_fabric_of_the_same_accelerators_elsewhere(
    plain: Catalogue,
) -> None:
    types, machines = plain.types, catalogue_fleet(plain)
    for name in ("gpu_8x_h100_sxm5", "gpu_8x_a100_80gb_sxm4", "n3-H100-SXM5x8"):
        row = plain.instance_type(name).index
        kin = (types.accelerator == types.accelerator[row]) & (types.accelerator_count == 8)
        fabrics = types.network_bytes_per_s[kin & np.asarray(types.is_rdma, bool)]
        assert machines.is_network_assumed[row]
        assert fabrics.min() <= machines.network_bytes_per_s[row] <= fabrics.max()
        assert machines.is_rdma[row]


def test_a_type_said_to_have_no_rdma_is_not_taken_to_have_that_of_its_accelerators(
    plain: Catalogue,
) -> None:
    types = plain.types
    told = (types.rdma == "no RDMA") & np.isnan(types.network_bytes_per_s)
    assert told.any()
    unsaid = replace(types, rdma=np.where(told, "", types.rdma))
    with_word = with_assumed_networks(types, plain.accelerators)
    without = with_assumed_networks(unsaid, plain.accelerators)
    assert np.asarray(without.is_rdma, bool)[told].any()
    assert not np.asarray(with_word.is_rdma, bool)[told].any()
    # How fast it is, nobody says: the rate stays assumed, and so do all other types.
    assert np.array_equal(with_word.network_bytes_per_s, without.network_bytes_per_s)
    assert with_word.is_network_assumed[told].all()
    assert np.array_equal(with_word.rdma_share[~told], without.rdma_share[~told])


def test_machines_without_a_fabric_count_only_where_no_other_is_known(plain: Catalogue) -> None:
    """Azure's ND96is without InfiniBand does not make a rented H100 cluster slower."""
    types = plain.types
    network = KnownNetworks(types, plain.accelerators).network("H100-SXM5-80GB", 8)
    slow = replace(
        types,
        network_bytes_per_s=np.where(
            np.asarray(types.is_rdma, bool), types.network_bytes_per_s, 1.0
        ),
    )
    assert KnownNetworks(slow, plain.accelerators).network("H100-SXM5-80GB", 8) == network


def test_a_provider_with_many_types_weighs_no_more_than_one_with_few(plain: Catalogue) -> None:
    types = plain.types
    azure = np.flatnonzero((types.provider == "azure") & (types.accelerator_count == 8))
    before = KnownNetworks(types, plain.accelerators)
    after = KnownNetworks(
        types.take(np.concatenate([np.arange(len(types)), azure, azure])), plain.accelerators
    )
    for name in ("H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X"):
        assert before.network(name, 8).bytes_per_s == after.network(name, 8).bytes_per_s


def test_a_catalogue_that_knows_no_network_still_assumes_one(plain: Catalogue) -> None:
    types = plain.types.take(np.arange(5))
    unknown = replace(types, network_bytes_per_s=np.full(5, np.nan))
    found = with_assumed_networks(unknown, plain.accelerators)
    assert (found.network_bytes_per_s > 0).all()
    assert (found.network_log_sd > 0).all()


def test_half_an_assumed_network_takes_as_much_longer_as_its_slope_says(plain: Catalogue) -> None:
    """The sends between stages count, too: a pipeline's interval holds a slower network."""
    model = Transformer(
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, is_gated=True, sequence=4096,
        vocabulary=128256,
    )  # fmt: skip
    case = Predictor(plain, learned=None).case(
        described_job(transformer_work(model, micro_batch=1), name="x", global_batch=64)
    )
    problem = on_machine(case, plain.instance_type("p4d.24xlarge").index).problem
    layout = Layout(dp=1, tp=8, pp=4, micro_batch=1, accumulation_steps=64)
    assert problem.evaluate(layout).parts_s["data_parallel_s"] == 0
    slope = network_slope(problem, layout)
    assert slope > 0
    slower = replace(
        problem,
        machines=replace(
            problem.machines, network_bytes_per_s=problem.machines.network_bytes_per_s / 2
        ),
    )
    ratio = slower.evaluate(layout).step_s / problem.evaluate(layout).step_s
    assert np.log2(ratio) == pytest.approx(slope, rel=0.5)


def test_an_assumed_network_widens_by_what_the_step_owes_to_it(plain: Catalogue) -> None:
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
    ("provider", "name", "gbit_per_s", "is_rdma", "read_on"),
    [
        ("azure", "Standard_D4s_v5", 12.5, False, "2026-11-21"),
        ("azure", "Standard_HB120rs_v3", 200, True, "2026-11-21"),
        # stated of Standard_E16ads_v5
        ("azure", "Standard_E16-4ads_v5", 12.5, False, "2026-11-21"),
        ("azure", "Standard_ND96isr_H100_v5", 3200, True, "2026-11-21"),
        ("oci", "BM.GPU.H100.8", 3200, True, "2026-11-21"),
        ("oci", "VM.GPU.A10.1", 24, False, "2026-11-21"),
        ("nebius", "gpu-h200-sxm_8gpu-128vcpu-1600gb", 3200, True, "2026-11-21"),
        ("scaleway", "L40Sx2", 5, False, "2026-11-21"),
        ("aws", "dl1.24xlarge", 400, True, "2026-11-29"),
        ("crusoe", "A100-80G-sxm4x8", 1600, True, "2026-11-29"),
        ("nebius", "gpu-h100-sxm_8gpu-128vcpu-1600gb", 3200, True, "2026-11-29"),
        ("gcp", "a3-highgpu-4g", 100, False, "2026-11-29"),
    ],
)
def test_networks_are_those_of_the_providers_pages(
    plain: Catalogue, provider: str, name: str, gbit_per_s: float, is_rdma: bool, read_on: str
) -> None:
    one = plain.instance_type(name, provider=provider)
    assert one.network_bytes_per_s == pytest.approx(gbit_per_s * GBIT)
    assert (one.rdma_share == 1.0) == is_rdma
    assert read_on in one.network_source


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

    def row(name: str, vcpus: float, gbps: float | None = None) -> ListedOffer:
        return ListedOffer(provider="gcp", instance_type=name, vcpus=vcpus, network_gbps=gbps)

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
    assert after.rdma_share == 1.0
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
    gbps = round(float(catalogue_fleet(plain).network_bytes_per_s[row]) / GBIT)
    stated = overridden(tmp_path, f"network,lambda,{name},100,RoCE-{gbps}")
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
    slower = overridden(tmp_path, f"network,lambda,{name},100,RoCE-{gbps // 10}")
    worse = Predictor(slower, learned=None).predict(job, name, count=4)
    assert worse.step_time_s.value > 1.1 * known.step_time_s.value
