"""The scaling law: its limits, and that its fit finds back what made the data."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import ModelError
from advisor.lab.fit.scaling import read_clusters
from advisor.planners.links.scaling import (
    ApplicationTerms,
    ClusterTerms,
    MeasuredPlacements,
    Placements,
    StepParts,
    cluster_terms,
    fit_cluster,
    step_parts,
)

CLUSTER = ClusterTerms(
    seconds_per_gb=0.0,
    intra=-0.8,
    intra_doubling=0.1,
    intra_crossing=0.3,
    two_nodes=0.2,
    node_doubling=0.1,
    several=0.2,
    several_doubling=0.0,
    crossing=0.15,
    unevenness=0.0,
    contention_doubling=0.03,
    straggler_doubling=0.02,
)
APPLICATIONS = ApplicationTerms(
    fixed_s=np.log([0.05, 0.1]),
    per_sample_s=np.log([0.01, 0.002]),
    contention_1=np.zeros(2),
    contention_2=np.zeros(2),
    contention_3=np.zeros(2),
    contention_4=np.zeros(2),
    gradients_gb=np.log([0.4, 0.1]),
    intra=np.zeros(2),
    exponent=np.ones(2),
    overlap=np.zeros(2),
    softness=np.full(2, -1.5),
)


def grid(nodes: list[int], per_node: list[int], batches: list[int]) -> Placements:
    a, n, g, m = (
        column.ravel() for column in np.meshgrid([0, 1], nodes, per_node, batches, indexing="ij")
    )
    return Placements(
        application=a,
        nodes=n.astype(float),
        per_node=g.astype(float),
        workers=(n * g).astype(float),
        batch=m.astype(float),
    )


def test_one_device_is_its_compute() -> None:
    places = grid([1], [1], [8, 32])
    parts = step_parts(CLUSTER, APPLICATIONS, places)
    alone = np.exp(APPLICATIONS.fixed_s)[places.application] + (
        np.exp(APPLICATIONS.per_sample_s)[places.application] * places.batch
    )
    np.testing.assert_allclose(parts.step_s, alone)
    np.testing.assert_allclose(parts.communication_s, 0.0)


@given(overlap=st.floats(-5, 5), softness=st.floats(-5, 0))
def test_what_shows_lies_between_the_overhang_and_the_whole(
    overlap: float, softness: float
) -> None:
    applications = replace(
        APPLICATIONS, overlap=np.full(2, overlap), softness=np.full(2, softness)
    )
    parts = step_parts(CLUSTER, applications, grid([1, 2, 4], [1, 4, 8], [4, 64]))
    assert np.all(parts.exposed_s >= 0)
    assert np.all(parts.exposed_s <= parts.communication_s * (1 + np.exp(softness)) + 1e-12)


def test_the_more_overlaps_the_less_shows_and_all_that_can_be_hidden_is_computing() -> None:
    places = grid([1, 2, 4], [1, 4, 8], [4, 64])

    def shown(overlap: float) -> StepParts:
        changed = {"overlap": np.full(2, overlap), "softness": np.full(2, -40.0)}
        return step_parts(CLUSTER, replace(APPLICATIONS, **changed), places)

    steps = [shown(overlap) for overlap in (-40.0, -1.0, 0.0, 1.0, 40.0)]
    for less, more in itertools.pairwise(steps):
        assert np.all(more.exposed_s <= less.exposed_s + 1e-9)
    none, all_of_it = steps[0], steps[-1]
    np.testing.assert_allclose(none.exposed_s, none.communication_s, rtol=1e-9, atol=1e-9)
    alone = np.exp(APPLICATIONS.fixed_s)[places.application] + (
        np.exp(APPLICATIONS.per_sample_s)[places.application] * places.batch
    )
    hidden = all_of_it.communication_s - all_of_it.exposed_s
    assert np.all(hidden <= all_of_it.compute_s + 1e-9)
    np.testing.assert_allclose(hidden[places.workers == 1], 0.0, atol=1e-9)
    assert np.all(hidden >= np.minimum(all_of_it.communication_s, 0.9 * alone) - 1e-9)


def test_a_larger_system_never_takes_a_shorter_step() -> None:
    places = grid([2, 4, 8], [2, 4, 8], [16])
    cluster = replace(CLUSTER, two_nodes=0.0)  # some clusters are slower on two nodes than three
    steps = step_parts(cluster, APPLICATIONS, places).step_s.reshape(2, 3, 3)
    assert np.all(np.diff(steps, axis=1) >= 0)
    assert np.all(np.diff(steps, axis=2) >= 0)


def made(places: Placements, noise: float, seed: int = 0) -> MeasuredPlacements:
    scatter = np.random.default_rng(seed).normal(0.0, noise, places.batch.size)
    return MeasuredPlacements(
        placements=places,
        step_s=step_parts(CLUSTER, APPLICATIONS, places).step_s * np.exp(scatter),
    )


def test_the_fit_finds_back_the_law_that_made_the_data() -> None:
    places = grid([1, 2, 3, 4], [1, 2, 4, 8], [4, 16, 64])
    fit = fit_cluster(made(places, 0.01), [0.4e9, 0.1e9])
    predicted, _ = fit.predict(places)
    np.testing.assert_allclose(predicted, made(places, 0.0).step_s, rtol=0.03)
    assert cluster_terms(fit).two_nodes == pytest.approx(CLUSTER.two_nodes, abs=0.15)


def test_four_devices_predict_more_within_the_interval() -> None:
    places = grid([1, 2, 4], [1, 2, 4], [4, 16, 64])
    few = places.workers <= 4
    data = made(places, 0.02)
    known = MeasuredPlacements(placements=places.take(few), step_s=data.step_s[few])
    predicted, log_sd = fit_cluster(known, [0.4e9, None]).predict(places.take(~few))
    error = np.abs(np.log(predicted / data.step_s[~few]))
    assert np.mean(error <= 1.6449 * log_sd) >= 0.8


def test_uncertainty_grows_away_from_the_data() -> None:
    few = grid([1, 2], [1, 2], [4, 16, 64])
    fit = fit_cluster(made(few, 0.02), [0.4e9, 0.1e9])
    _, log_sd = fit.predict(grid([2, 8, 32], [2], [16]))
    assert np.all(np.diff(log_sd.reshape(2, 3), axis=1) > 0)


def test_an_application_without_rows_is_refused() -> None:
    places = grid([1, 2], [1, 2], [4, 16]).take(np.arange(8))  # application 0 alone
    with pytest.raises(ValueError, match="rows of each application"):
        fit_cluster(made(places, 0.0), [None, None])


PLACEMENTS = """app,cluster,gpu,placement,local_bsz,step_time,measured
net,here,T4,1,8,0.5,1
net,here,T4,124,8,0.9,1
net,here,T4,44,8,1.1,0
"""
SCALABILITY = """app,cluster,gpu,num_nodes,num_replicas,local_bsz,step_time
net,here,T4,3,7,8,0.9
net,here,T4,2,7,8,1.0
"""


def test_tables_are_read_by_placement(tmp_path: Path) -> None:
    folder = tmp_path / "measurements" / "pollux_sia"
    folder.mkdir(parents=True)
    (folder / "sia_placements.csv").write_text(PLACEMENTS)
    (folder / "sia_scalability.csv").write_text(SCALABILITY)
    runs = read_clusters(tmp_path)["here"]
    places = runs.measured.placements
    # The synthetic row and the row that repeats placement 124 are gone.
    assert places.workers.tolist() == [1, 7, 7]
    assert places.nodes.tolist() == [1, 3, 2]
    assert places.per_node.tolist() == [1, 4, 4]
    assert runs.is_placement.tolist() == [True, True, False]


def test_missing_tables_and_columns_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="step times by placement: not under"):
        read_clusters(tmp_path)
    folder = tmp_path / "measurements" / "pollux_sia"
    folder.mkdir(parents=True)
    (folder / "sia_placements.csv").write_text("app,cluster\nnet,here\n")
    with pytest.raises(ModelError, match=r"lacks the columns.*local_bsz"):
        read_clusters(tmp_path)
