"""Saves and restarts against published measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor import data
from advisor.lab import data as measurements
from advisor.lab.score import clusters, run
from advisor.lab.score.scores import THE_PRODUCT
from advisor.planners import PlanningError
from advisor.planners.goodput import (
    BYTES_PER_PARAMETER,
    RESTART_AFTER_ADDITION_S,
    restart_after_removal_s,
    save_s,
)

# JF-D/Parcae @ efedee7 (MIT), V100, 10 Gb/s: nodes, seconds after a removal, after an addition.
PARCAE = np.array([
    (1, 54.28, 28.76), (2, 56.199, 33.587), (4, 60.734, 36.189), (8, 69.429, 40.882),
    (12, 75.658, 39.02), (16, 81.714, 42.892), (20, 83.816, 36.749), (24, 92.427, 37.849),
    (32, 95.427, 37.588),
])  # fmt: skip


def test_restarts_follow_parcaes_measurements() -> None:
    nodes, removal, addition = PARCAE.T
    np.testing.assert_allclose(restart_after_removal_s(nodes), removal, rtol=0.04)
    # Additions scatter without a trend: 25 % at most, 10 % on average.
    np.testing.assert_allclose(RESTART_AFTER_ADDITION_S, addition, rtol=0.3)
    assert np.mean(np.abs(RESTART_AFTER_ADDITION_S / addition - 1)) < 0.1


def test_restarts_on_few_nodes_predict_those_on_many() -> None:
    nodes, removal, _ = PARCAE.T
    design = np.stack([np.ones(nodes.size), np.sqrt(nodes)], axis=1)
    fitted = np.linalg.lstsq(design[:4], removal[:4], rcond=None)[0]
    np.testing.assert_allclose(design[4:] @ fitted, removal[4:], rtol=0.07)


def test_saves_are_those_of_bigscience() -> None:
    # 25 and 181 billion parameters on 8 and 64 nodes: 18 to 20 s.
    seconds = save_s(np.array([25e9, 181e9]) * BYTES_PER_PARAMETER, nodes=np.array([8, 64]))
    np.testing.assert_allclose(seconds, 19.0, rtol=0.2)


def test_checkpoints_larger_than_the_disk_are_refused() -> None:
    save_s(10e9, disk_bytes=21e9)
    with pytest.raises(PlanningError, match=r"2 checkpoints of 9\.3 GiB do not fit") as refused:
        save_s(10e9, disk_bytes=19e9)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("bad", [{"state_bytes": -1.0}, {"bytes_per_s": 0.0}, {"nodes": 0}])
def test_values_without_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(PlanningError) as refused:
        save_s(**{"state_bytes": 1.0, **bad})
    assert refused.value.exit_code == 2


def test_the_protocol_scores_tables_of_the_same_form(tmp_path: Path) -> None:
    restarts = tmp_path / measurements.PARCAE.tables["restarts"].published
    failures = tmp_path / measurements.FAILURES.tables["interruptions"].published
    for path in (restarts, failures):
        path.parent.mkdir(parents=True)
    rows = [f"restart_cost_{kind},{n:g},{seconds}" for n, removal, addition in PARCAE
            for kind, seconds in (("removal", removal), ("addition", addition))]  # fmt: skip
    restarts.write_text("\n".join(["kind,nodes,seconds", *rows]) + "\n")
    failures.write_text(
        "component,category,count,total_unexpected,gpus,days,source\n"
        "Faulty GPU,hardware,148,419,16384,54,table 5\n"
    )
    found = run("failures", tmp_path)
    by_name = {group.group: group.scores for group in found.groups}
    assert by_name["Parcae, restart after a removal"].mape_fraction < 0.07
    assert by_name["ResNet101, plateau after a fault"].mape_fraction < 0.03
    assert found.figures["llama3_hours_between_interruptions"] == pytest.approx(3.09, rel=2e-3)
    assert found.figures["llama3_effective_fraction_expected"] == pytest.approx(0.9, abs=0.01)


def test_the_protocol_scores_the_restarts_that_the_product_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = run("failures", data.measurements(None))
    assert usual.scores == THE_PRODUCT
    monkeypatch.setattr(
        clusters, "restart_after_removal_s", lambda nodes: 2.0 * restart_after_removal_s(nodes)
    )
    doubled = run("failures", data.measurements(None))
    groups = [
        next(g.scores for g in result.groups if g.group == clusters.REMOVAL)
        for result in (usual, doubled)
    ]
    assert groups[1].bias == pytest.approx(2.0 * groups[0].bias, rel=1e-5)
