"""The numbers of a dataset's card, from rows whose answers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from advisor.lab.minicloud import summary
from advisor.records import collected


def row(key: str, **changes: Any) -> dict[str, Any]:
    kind, job, instance, layout, replicate = key.split("/")
    made: dict[str, Any] = {
        "key": key, "kind": kind, "status": "ok", "is_noisy": False, "time_s": 2.0, "wall_s": 2.5,
        "correction_fraction": 0.0, "others_cores": 0.5, "steal_fraction": 0.0,
        "started_at": "2026-11-21T11:00:00+00:00", "replicate": int(replicate),
        "job": {"key": job, "workload": job.split("-")[0]}, "steps": 10, "steps_done": 10,
        "instance": {"name": instance, "threads": 1, "granted_cores": 0.5,
                     "nominal_price_usd_per_h": 0.025},
        "layout": {"name": layout, "kind": "single", "nodes": 1},
        "nodes": [{"cpu_s": 1.0}],
    }  # fmt: skip
    return made | changes


PARTIAL = "partial/mlp-w1-b1/core-1/single/0"
FULL = "full/mlp-w1-b1/quota-0.5core/single/"


def test_repeat_noise_is_the_relative_standard_deviation_of_a_cell() -> None:
    times = [1.0, 1.1, 0.9, 1.2]
    rows = [row(f"{FULL}{i}", time_s=time) for i, time in enumerate(times)]
    ((cell, count, noise),) = summary.repeat_noise(rows)
    assert (cell, count) == (FULL[:-1], 4)
    assert noise == pytest.approx(np.std(times, ddof=1) / np.mean(times))


def test_two_repeats_or_failures_tell_no_noise() -> None:
    rows = [row(f"{FULL}0"), row(f"{FULL}1"), row(f"{FULL}2", status="oom")]
    assert summary.repeat_noise(rows) == []


def test_the_share_law_is_exact_on_a_machine_without_noise() -> None:
    anchor = row(PARTIAL, anchor_mean_step_s=0.1, total_steps=10)
    assert summary.share_law_s(row(f"{FULL}0"), anchor) == pytest.approx(2.0)


def test_the_quietest_anchor_counts_with_the_first_ones_total() -> None:
    first = row(PARTIAL, total_steps=10, nodes=[{"cpu_s": 2.0}])
    second = row(PARTIAL, total_steps=99, nodes=[{"cpu_s": 1.0}])
    anchors = summary.anchor_rows([first, second])
    assert anchors["mlp-w1-b1"]["total_steps"] == 10
    assert anchors["mlp-w1-b1"]["nodes"] == [{"cpu_s": 1.0}]


def test_the_least_disturbed_attempt_is_kept() -> None:
    noisy = row(f"{FULL}0", is_noisy=True, time_s=1.0)
    corrected = row(f"{FULL}0", correction_fraction=0.2, time_s=2.0)
    calm = row(f"{FULL}0", correction_fraction=0.1, time_s=3.0)
    (kept,) = collected.least_disturbed([noisy, corrected, calm, corrected], "full")
    assert kept["time_s"] == 3.0


def test_a_run_that_others_kept_from_ending_is_no_label() -> None:
    cut = row(f"{FULL}0", status="censored", is_noisy=True, time_s=25.0)
    assert collected.least_disturbed([cut], "full") == []
    calm = {**cut, "is_noisy": False}
    assert collected.least_disturbed([cut, calm], "full") == [calm]


def test_a_card_counts_labels_not_attempts() -> None:
    rows = [
        row(PARTIAL, anchor_mean_step_s=0.1, total_steps=10),
        row(f"{FULL}0", is_noisy=True), row(f"{FULL}0"),
        row(f"{FULL}1", status="oom"),
    ]  # fmt: skip
    text = summary.describe(rows)
    assert "| records, every attempt | 4 |" in text
    assert "| labelled (full) runs | 2 |" in text
    assert "|   of them oom | 1 |" in text
    assert "| quota-0.5core | 1 | 0.0% |" in text


def test_the_hours_on_the_clock_are_those_of_ok_runs_that_are_not_noisy() -> None:
    rows = [
        row(PARTIAL, anchor_mean_step_s=0.1, total_steps=10, wall_s=3600.0),
        row(f"{FULL}0", wall_s=7200.0),
        row(f"{FULL}1", is_noisy=True, wall_s=3600.0),
        row(f"{FULL}2", status="oom", wall_s=3600.0),
    ]
    text = summary.describe(rows)
    assert "| hours of ok runs that are not noisy, waiting included | 2.00 |" in text


def test_an_empty_dataset_has_a_card() -> None:
    assert "| labelled (full) runs | 0 |" in summary.describe([])
