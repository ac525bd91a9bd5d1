"""What two cards of a machine reach between them: one rule, whoever asks."""

from pathlib import Path

import numpy as np
import pytest

from advisor import data
from advisor.catalogue import Catalogue, link_between
from advisor.catalogue.networks import KnownNetworks
from advisor.estimate.case import scaling
from advisor.estimate.estimate import estimate_on_gpu
from advisor.estimate.knowledge.known import find_job
from advisor.estimate.predictor import Predictor
from advisor.lab.data import COLLECTIVES
from advisor.machines.cluster import one_group
from advisor.machines.devices import accelerator_devices
from advisor.machines.fleet import LATENCY_S, catalogue_fleet, lone_fleet, lone_machines
from advisor.planners.links.collectives import hierarchical_all_reduce_s

CATALOGUE = Catalogue.load(with_overrides=False)
CARDS = ("T4", "A10G", "L4", "RTX-A6000", "RTX-3090", "A100-PCIe-80GB", "H100-SXM5-80GB")


@pytest.mark.parametrize("card", CARDS)
def test_a_card_alone_in_a_cluster_and_as_a_part_has_one_link(card: str) -> None:
    """Bridges join pairs only: such cards are taken to speak over PCIe."""
    row = CATALOGUE.accelerators[card]
    rate, is_own = link_between(row)
    assert lone_fleet(accelerator_devices()[card], 4, row).intra_bytes_per_s[0] == rate
    assert row.peer_bytes_per_s == rate
    assert one_group(f"4x{card}", CATALOGUE).node.intra.bytes_per_s == rate
    assert is_own == (bool(row.link_bytes_per_s) and "bridge" not in row.link)


def test_a_machine_has_its_measured_link_or_that_of_the_rule() -> None:
    """As a column of the fleet and as machines of a cluster."""
    types = CATALOGUE.types
    several = np.flatnonzero((types.accelerator_count >= 2) & (types.accelerator_count % 1 == 0))
    columns = catalogue_fleet(CATALOGUE)
    kinds = set()
    for i in several:
        row = CATALOGUE.accelerators.get(str(types.accelerator[i]))
        if row is None:
            continue
        measured = float(types.intra_node_bytes_per_s[i])
        host = float(types.host_device_bytes_per_s[i])
        rule, _ = link_between(
            row, str(types.intra_node_link[i]),
            host_bytes_per_s=None if np.isnan(host) else host,
        )  # fmt: skip
        expected = rule if np.isnan(measured) else measured
        assert columns.intra_bytes_per_s[i] == expected
        kinds.add(str(types.intra_node_link[i]))
    assert {"pcie-host", "pcie-p2p", "nvswitch"} <= kinds
    for name in ("g5.12xlarge", "g4dn.metal", "g2-standard-48", "p4d.24xlarge", "a2-highgpu-4g"):
        group = one_group(f"2x{name}", CATALOGUE)
        assert group.node.intra.bytes_per_s == columns.intra_bytes_per_s[group.type_index]


def test_messages_through_the_host_take_twice_the_time_of_direct_ones_or_nearly() -> None:
    card, gamer = CATALOGUE.accelerators["L4"], CATALOGUE.accelerators["RTX-4090"]
    direct, through = (link_between(card, link)[0] for link in ("pcie-p2p", "pcie-host"))
    assert 1.5 < direct / through <= 2.0
    assert link_between(gamer, "pcie")[0] == link_between(gamer, "pcie-host")[0]
    assert link_between(card, "pcie", host_bytes_per_s=2e10)[0] == pytest.approx(
        2e10 / 1.235e10 * link_between(card, "pcie", host_bytes_per_s=1.235e10)[0]
    )
    bridged = CATALOGUE.accelerators["A100-PCIe-80GB"]
    assert link_between(bridged, "nvlink-bridge-pair") == (bridged.link_bytes_per_s, True)
    assert link_between(None)[0] <= through


@pytest.mark.parametrize("card", ["A100-SXM4-80GB", "T4", "GB200-186GB", "TPU-v3"])
@pytest.mark.parametrize("count", [1, 8, 16, 20, 64, 4320])
def test_accelerators_alone_are_in_as_many_machines_as_hold_them(card: str, count: int) -> None:
    device = accelerator_devices()[card]
    fleet, machines = lone_machines(device, count, CATALOGUE)
    rented = CATALOGUE.types.accelerator_count[CATALOGUE.types.accelerator == card]
    assert machines * int(fleet.per_node[0]) == count
    assert (machines == 1) == (count <= rented.max(initial=0.0 if rented.size else 8.0))
    assert bool(fleet.is_network_assumed[0]) == (machines > 1)
    if machines > 1:  # nobody has a ring of thousands over the lanes of one host
        assert fleet.per_node[0] <= 8
        known = KnownNetworks(CATALOGUE.types, CATALOGUE.accelerators)
        network = known.network(card, int(fleet.per_node[0]))
        assert fleet.network_bytes_per_s[0] == network.bytes_per_s < np.inf
        assert fleet.network_log_sd[0] > 0


def test_a_job_s_step_on_thousands_does_not_grow_with_their_number(tmp_path: Path) -> None:
    """One run on 8 x A100, the same batch each: communication between machines is a tree."""
    table = tmp_path / "runs.csv"
    table.write_text("machine,count,step,batch\nA100-SXM4-80GB,8,100ms,256\n")
    steps = []
    for count in (8, 64, 4096):
        job = find_job(runs=str(table), batch=32 * count)
        asking = Predictor(CATALOGUE, learned=None)
        found = estimate_on_gpu(asking, job, "A100-SXM4-80GB", count=count)
        steps.append(found.step_time_s.value)
    assert steps[0] == pytest.approx(0.1, rel=0.01)
    assert steps[0] < steps[1] < steps[2] < 2 * steps[0]


# One step of a ring with the simple protocol, as NCCL's own tuning counts it (``hwLatencies`` in
# src/graph/tuning.cc, 2.18) [s]: over NVLink, over PCIe, over a network.
NCCL_STEP_S = {"nvlink": 3.4e-6, "host": 5.7e-6, "rdma": 14.0e-6, "ethernet": 14.0e-6}


@pytest.mark.parametrize("link", sorted(NCCL_STEP_S))
def test_a_message_waits_about_as_long_as_nccl_counts_with(link: str) -> None:
    assert 1 / 5 < LATENCY_S[link] / NCCL_STEP_S[link] < 5


@pytest.mark.parametrize(("rate", "link"), [("25Gbps", "ethernet"), ("1600Gbps", "rdma")])
def test_so_it_does_in_a_cluster_told_in_words(rate: str, link: str) -> None:
    node = one_group(f"2x8xA100-SXM4-80GB:nvlink@{rate}", CATALOGUE).node
    assert 1 / 5 < node.network.latency_s / NCCL_STEP_S[link] < 5
    assert 1 / 5 < node.intra.latency_s / NCCL_STEP_S["nvlink"] < 5
    assert node.intra.latency_s < node.network.latency_s


@pytest.mark.parametrize(("card", "rate"), [("a100", 300e9), ("v100", 150e9)])
def test_small_messages_take_what_was_measured_within_a_factor(card: str, rate: float) -> None:
    """vTrain's all-reduces of 1 to 5 MB on eight cards of a machine: mostly latency."""
    table = COLLECTIVES.read("all_reduce", data.measurements(None))
    small = table[(table.accelerator == card) & (table.message_bytes <= 5 * 2**20)]
    told = hierarchical_all_reduce_s(
        small.message_bytes, 8, 1, rate, LATENCY_S["nvlink"], 1e9, 0.0, scaling().collectives
    )
    assert len(small) == 5
    ratio = told / small.all_reduce_s.to_numpy()
    assert ratio.min() > 1 / 4
    assert ratio.max() < 4
