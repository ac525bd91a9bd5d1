"""A named cluster's network: said to bypass the kernel or not, and between the two otherwise."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.catalogue import Catalogue
from advisor.errors import UsageError
from advisor.jobs import described_job
from advisor.machines import Cluster, parse_cluster
from advisor.planners.core import Transformer
from advisor.planners.links import between_transports
from advisor.planners.step import transformer_work
from advisor.rank.given import PlanQuestion, plan

RATES = (5.0, 9.9, 10.0, 10.1, 17.0, 25.0, 40.0, 50.0, 75.0, 94.0, 94.2, 99.0, 100.0, 101.0, 400.0)
STREAM = 0.72e9


def cluster(text: str) -> Cluster:
    return parse_cluster(text, Catalogue.load())


def reached(text: str) -> float:
    (group,) = cluster(text)
    link = group.node.network
    assert link.rdma_share is not None
    return float(between_transports(link.bytes_per_s, STREAM, link.rdma_share))


def test_more_network_is_never_slower_whatever_it_is_used_by() -> None:
    for word in ("", ":tcp", ":rdma"):
        found = [reached(f"2x1xA10G@{rate:g}Gbps{word}") for rate in RATES]
        assert found == sorted(found)


def test_a_hundredth_more_network_changes_little() -> None:
    rates = [5.0 * 1.01**step for step in range(350)]
    found = [reached(f"2x1xA10G@{rate:.6f}Gbps") for rate in rates]
    assert max(b / a for a, b in itertools.pairwise(found)) < 1.035


@pytest.mark.parametrize("rate", [5, 10, 25, 50, 94, 100, 400])
def test_what_is_not_said_lies_between_what_can_be_said(rate: int) -> None:
    slow, open_, fast = (reached(f"2x1xA10G@{rate}Gbps{word}") for word in (":tcp", "", ":rdma"))
    assert slow <= open_ * (1 + 1e-12)
    assert open_ <= fast * (1 + 1e-12)


@pytest.mark.parametrize("text", [
    "2x8xA100-80GB:rdma@25Gbps", "2x8xA100-80GB@25Gbps:rdma", "2x8xA100-80GB:nvlink:rdma@25Gbps",
    "2x8xA100-80GB:nvlink:300W:rdma@25Gbps", "2x8xA100-80GB:rdma",
])  # fmt: skip
def test_the_word_stands_before_or_behind_the_rate(text: str) -> None:
    (group,) = cluster(text)
    assert group.node.network.rdma_share == 1.0


def test_what_is_no_transport_is_refused() -> None:
    with pytest.raises(UsageError):
        cluster("2x8xA100-80GB@25Gbps:pigeon")


@settings(max_examples=12, deadline=None)
@given(
    st.floats(10, 390), st.sampled_from(["", ":tcp", ":rdma"]),
    st.sampled_from(["2x1xA10G@{0}", "4x4xL4@{0}", "1x2xA100-40GB@{0},1x4xA10G@{0}"]),
)  # fmt: skip
def test_what_is_planned_has_no_cliff_and_is_never_slower_for_more(
    rate: float, word: str, machines: str
) -> None:
    """A hundredth more network: no way over all machines loses, none gains more than four."""
    model = Transformer(layers=24, hidden=2048, heads=16, sequence=512, vocabulary=50304)
    job = described_job(transformer_work(model, micro_batch=1), name="one", global_batch=16)
    slow, fast = (
        {
            choice.name: choice.step_time_s.value
            for choice in plan(PlanQuestion(
                job=job, cluster=cluster(machines.format(f"{each:.6f}Gbps{word}"))
            )).plans
        }
        for each in (rate, 1.01 * rate)
    )  # fmt: skip
    assert slow.keys() == fast.keys()
    for name, step_s in fast.items():
        assert slow[name] / 1.04 <= step_s <= slow[name] * (1 + 1e-9), name
