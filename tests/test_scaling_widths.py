"""Widths of scaling: of clusters left out, for one never seen, and growing where rings err."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from advisor.estimate import case
from advisor.lab.fit import scaling
from advisor.lab.fit.scaling import (
    GRADIENT_BYTES,
    KNOWN_CLUSTERS,
    TABLE_NETWORK_BYTES_PER_S,
    ClusterRuns,
    Rings,
    growth_per_doubling,
    uncalibrated,
    variance_components,
)
from advisor.lab.fit.verbs import widening
from advisor.planners.links.collectives import ring_all_reduce_s
from advisor.planners.links.gradients import ScalingParameters
from advisor.planners.links.scaling import MeasuredPlacements, Placements
from advisor.quantities import REACH_90

WORKERS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
PLACES = Placements(
    application=np.zeros(5, int), nodes=np.array([1.0, 1.0, 1.0, 2.0, 4.0]),
    per_node=np.minimum(WORKERS, 4.0), workers=WORKERS, batch=np.full(5, 16.0),
)  # fmt: skip
ALONE_S = 0.2


def constants() -> ScalingParameters:
    return replace(case.scaling(), log_sd_compute=0.0, log_sd_communication=0.0)


def shares() -> np.ndarray:
    """What part of the step of synthetic runs on several devices communication takes."""
    found = uncalibrated("aws", GRADIENT_BYTES["bert"], np.full(5, ALONE_S), PLACES, constants())
    return (found.communication_s / found.step_s)[1:]


def drawn(rng: np.random.Generator, compute: float, communication: float) -> ClusterRuns:
    """Return one synthetic cluster, as far from the constants as clusters differ."""
    found = uncalibrated("aws", GRADIENT_BYTES["bert"], np.full(5, ALONE_S), PLACES, constants())
    share = found.communication_s / found.step_s
    error = compute * rng.standard_normal() + communication * share * rng.standard_normal()
    return ClusterRuns(
        applications=("bert",),
        measured=MeasuredPlacements(
            placements=PLACES, step_s=np.where(WORKERS > 1, found.step_s * np.exp(error), ALONE_S)
        ),
        is_placement=np.ones(5, bool),
    )


def widths_of(
    monkeypatch: pytest.MonkeyPatch, seed: int, clusters: int, spread: tuple[float, float]
) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    runs = {f"c{k}": drawn(rng, *spread) for k in range(clusters)}
    links = {**KNOWN_CLUSTERS, **dict.fromkeys(runs, KNOWN_CLUSTERS["aws"])}
    monkeypatch.setattr(scaling, "KNOWN_CLUSTERS", links)
    return variance_components(dict.fromkeys(runs, constants()), runs)


def test_the_spread_between_many_clusters_is_found_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = widths_of(monkeypatch, 0, 300, (0.1, 0.6))
    assert np.allclose(found, (0.1, 0.6), rtol=0.15)


def test_three_clusters_cover_a_fourth(monkeypatch: pytest.MonkeyPatch) -> None:
    compute, communication = spread = (0.1, 0.6)
    share = shares()
    truth = np.hypot(compute, communication * share)

    def covered(widths: tuple[float, float], factor: float) -> float:
        sd = factor * np.hypot(widths[0], widths[1] * share)
        return float(np.mean(1 - 2 * norm.sf(REACH_90 * sd / truth)))

    found = [widths_of(monkeypatch, seed, 3, spread) for seed in range(40)]
    assert 0.82 < np.mean([covered(w, 1.0) for w in found]) < 0.95
    # The normal quantile alone would not do: few groups are why they are wider.
    assert np.mean([covered(w, 1 / widening(3)) for w in found]) < 0.82


@given(st.integers(1, 50))
def test_fewer_groups_are_wider(groups: int) -> None:
    assert 1.0 < widening(groups + 1) < widening(groups)


@pytest.mark.parametrize("groups", [1, 3, 10])
def test_a_root_mean_square_so_widened_covers_what_it_says(groups: int) -> None:
    rng = np.random.default_rng(groups)
    known, new = rng.standard_normal((100_000, groups)), rng.standard_normal(100_000)
    half = REACH_90 * widening(groups) * np.sqrt(np.mean(known**2, axis=1))
    assert np.mean(np.abs(new) <= half) == pytest.approx(0.9, abs=0.005)


def rings(slower_per_doubling: float) -> Rings:
    """Return synthetic rings of the law, slower with every doubling by what no constant says."""
    workers, size = (
        column.ravel() for column in np.meshgrid(2.0 ** np.arange(4, 11), 2.0 ** np.arange(24, 34))
    )
    law = ring_all_reduce_s(size, workers, TABLE_NETWORK_BYTES_PER_S, 1e-5, efficiency=0.9)
    noise = 0.02 * np.random.default_rng(1).standard_normal(size.size)
    late = slower_per_doubling * np.log2(workers / 16) ** 2
    return Rings(workers=workers, size=size, log_s=np.log(law) + late + noise)


def test_widths_grow_where_larger_rings_err_more() -> None:
    none, some, much = (growth_per_doubling(rings(rate)) for rate in (0.0, 0.02, 0.04))
    assert none < 0.02 < some < much


def test_one_number_of_devices_says_nothing_of_growth() -> None:
    one = rings(0.1)
    kept = one.workers == 16
    alone = Rings(workers=one.workers[kept], size=one.size[kept], log_s=one.log_s[kept])
    assert growth_per_doubling(alone) == 0.0
