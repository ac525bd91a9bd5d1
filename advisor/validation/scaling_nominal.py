"""Protocol ``scaling-nominal``: a step on more than four GPUs from steps on one and nominal links.

What the product's planner of data parallelism says where nothing was measured on several GPUs: it
is told the application's measured step on one GPU, the size of its gradients and the links as
sold. Its constants are fitted without the scored cluster (``advisor.train.scaling``); with them
fitted on all three clusters, as they ship, the figures are in sample and named so. Applications of
unknown gradients, or without a step on one GPU, cannot be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.lab.data import SIA
from advisor.planners.links.data_parallel import DataParallelColumns, ScalingParameters
from advisor.planners.links.scaling_fit import MeasuredPlacements
from advisor.train.scaling import fit_without_each
from advisor.train.scaling_errors import (
    INPUT_BOUND,
    KNOWN_CLUSTERS,
    one_device_s,
    uncalibrated,
)
from advisor.train.scaling_runs import ClusterRuns, read_clusters
from advisor.validation.scaling import FEW
from advisor.validation.scaling_baselines import nominal_links, perfect_scaling
from advisor.validation.scores import Group, Scores, Validation, compare, score
from advisor.ways import parameters

Array = NDArray[np.float64]
SEEN: Final = (
    "the planner's form: overlap, one stream's limit and stragglers were chosen while looking at "
    "these clusters",
    "an application's steps on one GPU of the scored cluster: measured, and told",
)
IN_SAMPLE: Final = "in sample (constants as shipped, fitted on these rows)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One application's rows on more than four GPUs, and what each rule makes of them [s]."""

    cluster: str
    application: str
    measured_s: Array
    columns: DataParallelColumns
    rules: Mapping[str, Array]


def run(data: Path) -> Validation:
    """Score the planner on the placement tables under ``data``, each cluster left out.

    Raises
    ------
    ModelError
        If the tables are not there, or nothing in them can be asked.
    """
    clusters = {n: r for n, r in read_clusters(data).items() if n in KNOWN_CLUSTERS}
    if len(clusters) < 2 and not SIA.is_in(data):
        raise SIA.absent(data)  # one cluster ships, and alone it cannot be left out
    constants = fit_without_each(data)
    asked = [
        one
        for name, runs in clusters.items()
        if name in constants
        for one in _applications(name, runs, constants[name])
    ]
    if not asked:
        raise ModelError(
            "no cluster can be left out: at least two with known links and steps on one GPU",
            hint="see shared/reference/protocols.md, scaling",
        )
    rules = {name: np.concatenate([a.rules[name] for a in asked]) for name in asked[0].rules}
    ours = np.concatenate([a.columns.step_s for a in asked])
    measured = np.concatenate([a.measured_s for a in asked])
    in_sample = rules.pop(IN_SAMPLE)
    simple, beside = compare(rules, ours, measured)
    return Validation(
        protocol="scaling-nominal",
        description="step time on more than 4 GPUs from one GPU's and nominal links, cluster out",
        form="chosen with these rows in sight",
        scores="the product's planner of data parallelism, told the step measured on one GPU",
        seen=SEEN,
        overall=_scores(asked),
        groups=[
            _group(name, [a for a in asked if a.cluster == name])
            for name in clusters
            if any(a.cluster == name for a in asked)
        ],
        baselines=simple,
        beside=beside,
        figures={
            f"pooled: {IN_SAMPLE}, MAPE": score(in_sample, measured).mape_fraction,
            **_means(asked),
            **_coverage_by_bound(asked),
        },
        notes=(
            "known of a cluster: its links as sold, and each application's steps on one GPU",
            "YOLOv3's steps are bound by loading, of which the planner is told nothing",
            "figures by cluster: mean over applications of the MAPE of step time, every rule on "
            "the same applications",
        ),
    )


def _applications(name: str, runs: ClusterRuns, constants: ScalingParameters) -> list[_Asked]:
    found = []
    for index, application in enumerate(runs.applications):
        own = runs.measured.placements.application == index
        few = runs.measured.placements.workers <= FEW
        known, wanted = runs.take(own & few), runs.take(own & ~few)
        size = runs.gradient_bytes[index]
        alone = one_device_s(known, wanted.placements)
        if size is None or alone is None or not wanted.step_s.size:
            continue
        found.append(
            _Asked(
                cluster=name,
                application=application,
                measured_s=wanted.step_s,
                columns=uncalibrated(name, size, alone, wanted.placements, constants),
                rules=_rules(name, size, known, wanted, alone),
            )
        )
    return found


def _rules(
    name: str, size: float, known: MeasuredPlacements, wanted: MeasuredPlacements, alone: Array
) -> dict[str, Array]:
    shipped = parameters.scaling()
    values = {
        "perfect scaling": perfect_scaling(name, size, known, wanted.placements),
        "alpha-beta at nominal bandwidth": nominal_links(name, size, known, wanted.placements),
        IN_SAMPLE: uncalibrated(name, size, alone, wanted.placements, shipped).step_s,
    }
    return {rule: value for rule, value in values.items() if value is not None}


def _scores(asked: Sequence[_Asked]) -> Scores:
    step = np.concatenate([a.columns.step_s for a in asked])
    half = np.exp(REACH_90 * np.concatenate([a.columns.log_sd for a in asked]))
    measured = np.concatenate([a.measured_s for a in asked])
    return score(step, measured, low=step / half, high=step * half)


def _group(cluster: str, asked: Sequence[_Asked]) -> Group:
    measured = np.concatenate([a.measured_s for a in asked])
    return Group(
        group=cluster,
        scores=_scores(asked),
        baselines={
            name: score(np.concatenate([a.rules[name] for a in asked]), measured)
            for name in asked[0].rules
            if name != IN_SAMPLE
        },
    )


def _coverage_by_bound(asked: Sequence[_Asked]) -> dict[str, float]:
    """Return what intervals cover of steps that only compute and exchange, and of the others."""
    kinds = {
        "90 % interval covers, loading aside": [
            a for a in asked if a.application not in INPUT_BOUND
        ],
        "90 % interval covers, bound by loading": [
            a for a in asked if a.application in INPUT_BOUND
        ],
    }
    found = {kind: _scores(own).coverage for kind, own in kinds.items() if own}
    return {kind: covered for kind, covered in found.items() if covered is not None}


def _means(asked: Sequence[_Asked]) -> dict[str, float]:
    """Return the mean over a cluster's applications, ours and every rule's."""
    figures = {}
    for cluster in dict.fromkeys(a.cluster for a in asked):
        own = [a for a in asked if a.cluster == cluster]
        predicted = {"ours": [a.columns.step_s for a in own]} | {
            rule: [a.rules[rule] for a in own] for rule in own[0].rules
        }
        for rule, steps in predicted.items():
            errors = [
                score(s, a.measured_s).mape_fraction for s, a in zip(steps, own, strict=True)
            ]
            figures[f"{cluster}: {rule}"] = round(float(np.mean(errors)), 4)
    return figures
