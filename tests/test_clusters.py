from __future__ import annotations

import contextlib
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.catalogue import Catalogue
from advisor.errors import AdvisorError, CatalogueError, UsageError
from advisor.estimate.plan import GivenMachines
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.machines.cluster import parse_cluster, read_cluster
from advisor.machines.fleet import catalogue_fleet, own_fleet
from advisor.planners.core.arrays import domain_devices
from advisor.planners.core.errors import GIB
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work


@cache
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def test_instance_types_bring_their_accelerators_links_and_prices() -> None:
    a2, g2 = parse_cluster("2x a2-highgpu-8g + 4x g2-standard-48", catalogue())
    assert (a2.count, a2.node.devices, a2.part.name) == (2, 8, "A100-SXM4-40GB")
    assert (g2.count, g2.node.devices, g2.part.name) == (4, 4, "L4")
    assert a2.node.network.bytes_per_s == 100e9 / 8
    assert a2.devices + g2.devices == 32
    assert a2.region
    assert a2.region == g2.region
    assert a2.price_usd_per_h is not None
    assert g2.price_usd_per_h is not None
    expected = 2 * a2.price_usd_per_h + 4 * g2.price_usd_per_h
    assert GivenMachines.of((a2, g2)).price_usd_per_h == pytest.approx(expected)


@given(st.floats(280, 700), st.floats(280, 700))
def test_a_power_limit_slows_products_by_less_than_its_share(one: float, other: float) -> None:
    def rate(limit: str) -> float:
        (group,) = parse_cluster(f"8xH100-SXM5-80GB{limit}@400Gbps", catalogue())
        assert group.part.memory_bytes_per_s == whole.part.memory_bytes_per_s
        return group.part.flop_per_s

    (whole,) = parse_cluster("8xH100-SXM5-80GB@400Gbps", catalogue())
    low, high = sorted((one, other))
    assert rate(f":{low}W") <= rate(f":{high}W") <= rate(":nvlink:700W") == rate("")
    assert rate(f":{low}W") >= low / 700 * rate("")


def test_a_limit_of_power_is_told_of_in_every_form_and_reaches_the_step(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[[groups]]\ngpu = "H100-96GB"\ngpus_per_node = 8\npower_limit_w = 500\n'
        "network_gbps = 400\n"
    )
    (group,) = read_cluster(str(file), catalogue())
    assert group.label == "8xH100-SXM5-96GB:500W"
    assert group.part.device is not None
    assert (group.part.device.tdp_w, group.part.memory_bytes_per_s) == (500.0, 2412e9)

    asking = Predictor(catalogue(), learned=None)

    def step_s(cluster: str) -> float:
        (group,) = parse_cluster(cluster, catalogue())
        fleet, row = own_fleet(group, asking.fleet, per_node=8)
        model = Transformer(layers=8, hidden=4096, heads=32, sequence=2048, vocabulary=32_000)
        work = transformer_work(model, micro_batch=1, precision="bf16")
        job = described_job(work, name="llama", global_batch=64)
        found = asking.step_columns(job, np.array([row]), np.array([1]), fleet=fleet)
        return float(found.step_s[0])

    # By the operators' law and by the shapes': A10 has no measured rate.
    for board, limit in (("H100-96GB", "500W"), ("A10", "100W")):
        assert step_s(f"8x{board}:{limit}@400Gbps") > 1.02 * step_s(f"8x{board}@400Gbps")


@pytest.mark.parametrize("limit", ["100W", "900W", "0W"])
def test_limits_that_no_board_has_are_refused(limit: str) -> None:
    with pytest.raises(UsageError, match="power limit") as error:
        parse_cluster(f"8xH100-SXM5-80GB:{limit}", catalogue())
    assert "280W to 700W" in (error.value.hint or "")


def test_accelerators_bring_the_links_that_were_written() -> None:
    a100, l4 = parse_cluster("8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps", catalogue())
    assert a100.part.name == "A100-SXM4-80GB"
    assert a100.node.intra.bytes_per_s == 300e9
    assert a100.node.network.bytes_per_s == 25e9
    assert (l4.node.intra.name, l4.node.network.bytes_per_s) == ("pcie", 3.125e9)
    assert GivenMachines.of((a100, l4)).price_usd_per_h is None


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 64),
    st.integers(1, 16),
    st.sampled_from(["L4", "A100-SXM4-40GB", "H100-SXM5-80GB", "T4"]),
    st.integers(1, 800),
)
def test_what_is_written_is_read(nodes: int, gpus: int, name: str, gbit: int) -> None:
    (group,) = parse_cluster(f"{nodes}x{gpus}x{name}@{gbit}Gbps", catalogue())
    assert (group.count, group.node.devices, group.part.name) == (nodes, gpus, name)
    assert group.node.network.bytes_per_s == pytest.approx(gbit * 1e9 / 8)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789xX@:+, LA4-bGps.", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(AdvisorError):
        assert all(group.devices > 0 for group in parse_cluster(text, catalogue()))


def test_the_same_machine_named_twice_is_one_group() -> None:
    (group,) = parse_cluster("8xL4@50Gbps + 8xL4@50Gbps", catalogue())
    assert group.count == 2
    (group,) = parse_cluster("a2-highgpu-8g + 2x a2-highgpu-8g", catalogue())
    assert group.count == 3


def test_a_card_wins_over_a_machine_of_the_same_name() -> None:
    (group,) = parse_cluster("8xA100", catalogue())
    assert group.part.name.startswith("A100")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read"),
        ("8xA100 +", "cannot read"),
        ("3xfoo", "neither an instance type nor an accelerator"),
        ("2x a2-highgpu-9g", "neither"),
        ("0xL4", "cannot have 0"),
        ("0x8xL4", "out of range"),
        ("1x99xA100", "cannot have 99"),
        ("101xA100", "fill no equal machines"),
        ("8xL4:nvlink", "has no nvlink"),
        ("8xL4:string", "unknown link"),
        ("8xL4@0Gbps", "out of range"),
        ("m5.large", "no whole accelerator"),
    ],
)
def test_bad_clusters_are_refused(text: str, says: str) -> None:
    with pytest.raises((UsageError, CatalogueError), match=says) as caught:
        parse_cluster(text, catalogue())
    assert caught.value.hint


def test_files_say_what_text_says(tmp_path: Path) -> None:
    groups = [
        {"instance_type": "a2-highgpu-8g", "count": 2},
        {"gpu": "L4", "gpus_per_node": 4, "nodes": 3, "network_gbps": 50},
    ]
    (tmp_path / "c.json").write_text(json.dumps({"groups": groups}))
    (tmp_path / "c.toml").write_text(
        '[[groups]]\ninstance_type = "a2-highgpu-8g"\ncount = 2\n'
        '[[groups]]\ngpu = "L4"\ngpus_per_node = 4\nnodes = 3\nnetwork_gbps = 50\n'
    )
    text = parse_cluster("2x a2-highgpu-8g + 3x4xL4@50Gbps", catalogue())
    assert read_cluster(str(tmp_path / "c.json"), catalogue()) == text
    assert read_cluster(str(tmp_path / "c.toml"), catalogue()) == text


@pytest.mark.parametrize("content", ["", "[]x", '{"groups": 3}', '{"groups": [{"gpu": "L4"}]}'])
def test_malformed_files_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="cannot read the cluster"):
        read_cluster(str(file), catalogue())
    with pytest.raises(UsageError, match="cannot read the cluster"):
        read_cluster(str(tmp_path / "absent.json"), catalogue())


def test_measured_rates_are_taken_and_missing_ones_said_to_be_inferred() -> None:
    known = catalogue().accelerators["A100-SXM4-80GB"]
    assert known.flop_per_s == pytest.approx(271.2e12)
    assert not known.is_inferred
    assert known.memory_bytes >= 79 * GIB
    unknown = catalogue().accelerators["L40S"]
    assert unknown.is_inferred
    assert 0 < unknown.flop_per_s < 362e12


def test_a_rack_is_its_machines_joined_by_one_fabric() -> None:
    # GB200 NVL72: 18 trays of four whose NVLink joins all 72; each tray has its own network.
    for text, machines, domain in (
        ("72xGB200@1600Gbps", 18, 18),
        ("64xGB200@1600Gbps", 16, 16),
        ("2x72xGB200@1600Gbps", 36, 18),
        ("36x4xGB200@1600Gbps", 36, 18),
    ):
        (group,) = parse_cluster(text, catalogue())
        assert (group.count, group.node.devices) == (machines, 4)
        assert group.node.domain_machines == domain
        assert group.machines().network_bytes_per_s == pytest.approx(200e9)
        assert float(domain_devices(group.machines())) == 4 * domain
    (eight,) = parse_cluster("8xH100-SXM5-80GB", catalogue())
    assert eight.node.domain_machines == 1


def test_the_catalogues_racks_reach_the_layout_search() -> None:
    known = catalogue_fleet(catalogue())
    racks = [i for i in range(len(catalogue().types.name)) if known.domain_machines[i] > 1]
    assert racks
    assert all("GB" in str(catalogue().types.accelerator[i]) for i in racks)
    assert all(known.domain_machines[i] * known.per_node[i] == 72 for i in racks)


def test_cards_without_direct_transfers_cross_pcie_twice() -> None:
    """A data-centre card reaches what L4s and RTX PRO 6000s were measured at, GeForce half."""
    for name, share in (
        ("A100-PCIe-80GB", 0.9), ("L40S", 0.9), ("RTX-2000-Ada", 0.9), ("RTX-3090", 0.5),
        ("RTX-2080-Ti", 0.5),
    ):  # fmt: skip
        known = catalogue().accelerators[name]
        assert known.peer_bytes_per_s == pytest.approx(share * known.host_bytes_per_s)
        (group,) = parse_cluster(f"2x4x{name}:pcie@100Gbps", catalogue())
        assert group.node.intra.bytes_per_s == known.peer_bytes_per_s
