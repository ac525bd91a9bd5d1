"""Protocol ``scaling``: runs of a job on at most four GPUs are noted; its larger runs are asked.

Every application that can be described is a job; its measured steps on at most four GPUs are its
real runs (``advisor runs actual RUN --cluster 2x2xT4@50Gbps --batch 256 --step-time 310ms``), and
the others are asked of ``Predictor.step_columns``, which times them by the job's own law of
scaling (``ways.measured_cluster``). Placements of unlike shares of machines, which nobody rents,
are neither known nor asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.jobs.actuals import Actual
from advisor.jobs.described import described_job
from advisor.jobs.job import Job
from advisor.machines.cluster_text import one_group
from advisor.machines.own_nodes import own_fleet
from advisor.planners.core.nouns import Transformer, Work
from advisor.planners.links.scaling_fit import MeasuredPlacements
from advisor.planners.links.scaling_law import Placements
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.train.scaling_runs import ClusterRuns, read_clusters
from advisor.validation.asked_layouts import predictor
from advisor.validation.scaling_baselines import BASELINES, Baseline
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]
FEW: Final = 4  # GPUs of which everything is known
FAR: Final = 3  # times the largest known size: beyond, what grows with scale is not seen
# Machines of the clusters as --cluster takes them, devices in front: SOURCE.md, Sia's section 4.2.
MACHINES: Final = {
    "aws": "T4:pcie@50Gbps",
    "rtx": "RTX-2080-Ti:pcie@50Gbps",
    "dgx-ext": "A100-40GB:nvlink@1600Gbps",
}
# Of a sample: BERT-base on SQuAD; ResNet-18 on CIFAR-10; ResNet-50. Others are not public.
_NETWORKS: Final = {
    "cifar10": "32:64:2x64,2x128,2x256,2x512:basic::10",
    "imagenet": "224:64:3x256,4x512,6x1024,3x2048:bottleneck",
}
_BERT: Final = Transformer(layers=12, hidden=768, heads=12, sequence=384, vocabulary=30_522)
SEEN: Final = (
    "the law's form, the noise of a row and the priors' widths: after seeing residuals of these "
    "rows",
    "the prior means of what grows with scale",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Answers for one application's rows on more than four GPUs; of a baseline log_sd is 0."""

    cluster: str
    application: str
    measured_s: Array
    predicted_s: Array
    log_sd: Array
    workers: Array

    @property
    def mape(self) -> float:
        """Mean absolute percentage error as a fraction."""
        return float(np.mean(np.abs(self.predicted_s / self.measured_s - 1.0)))

    def take(self, rows: Rows) -> Scored:
        """Return some of the rows."""
        names = ("measured_s", "predicted_s", "log_sd", "workers")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def run(data: Path) -> Validation:
    """Score the product on the placement tables under ``data``.

    Raises
    ------
    ModelError
        If the tables are not there, or nothing in them can be scored.
    """
    asked: list[Scored] = []
    rules: dict[str, list[Scored]] = {name: [] for name in BASELINES}
    left_out: list[str] = []
    for cluster, runs in read_clusters(data).items():
        if cluster not in MACHINES:
            continue
        for index, application in enumerate(runs.applications):
            known, wanted = _halves(runs, index)
            work = work_of(application)
            if work is None or not (known.step_s.size and wanted.step_s.size):
                left_out.append(f"{cluster} {application}")
                continue
            asked.append(_asked(cluster, application, work, known, wanted))
            size = runs.gradient_bytes[index]
            for name, rule in BASELINES.items():
                rules[name] += _ruled(asked[-1], rule, size, known, wanted)
    if not asked:
        raise ModelError("no application has rows both on at most and on more than four GPUs")
    simple = {name: _scores(own) for name, own in rules.items() if own}
    rows = {(s.cluster, s.application): s for s in asked}
    return Validation(
        protocol="scaling",
        description="step time on more than 4 GPUs from the job's runs on at most 4",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=_scores(asked),
        groups=[Group(group=f"{s.cluster} {s.application}", scores=_scores([s])) for s in asked],
        baselines=simple,
        beside={
            name: _scores([rows[s.cluster, s.application] for s in own])
            for name, own in rules.items()
            if own
        },
        figures=_means({"ours": asked, **rules}) | _far(asked),
        notes=[
            "figures: mean over applications of the MAPE of step time, as a fraction",
            f"not asked, since nobody can describe or place them: {', '.join(left_out)}; and "
            "placements of unlike shares of machines",
            "an application's work is that of the public model of its name, in fp32",
        ],
    )


def work_of(application: str) -> Work | None:
    """Return what one sample of an application computes; None of what cannot be described."""
    if application == "bert":
        # As a recording of the script would be known: by its operators.
        return replace(transformer_work(_BERT, micro_batch=1, precision="fp32"), transformer=None)
    if application in _NETWORKS:
        network = parse_network(_NETWORKS[application])
        return convolutional_work(network, micro_batch=1, precision="fp32")
    return None


def _halves(runs: ClusterRuns, index: int) -> tuple[MeasuredPlacements, MeasuredPlacements]:
    """Return an application's rows on few GPUs and on more, on like shares of machines."""
    places = runs.measured.placements
    own = (places.application == index) & (places.workers == places.nodes * places.per_node)
    few = places.workers <= FEW
    return runs.take(own & few), runs.take(own & ~few)


def _actuals(cluster: str, known: MeasuredPlacements) -> tuple[Actual, ...]:
    at = known.placements
    return tuple(
        Actual(
            run=cluster,
            provider="",
            instance_type=_machines(cluster, int(nodes), int(per_node)),
            count=1,
            step_s=float(step_s),
            batch=round(workers * batch),
        )
        for nodes, per_node, workers, batch, step_s in zip(
            at.nodes, at.per_node, at.workers, at.batch, known.step_s, strict=True
        )
    )


def _machines(cluster: str, nodes: int, per_node: int) -> str:
    return f"{nodes}x{per_node}x{MACHINES[cluster]}"


def _asked(
    cluster: str, application: str, work: Work, known: MeasuredPlacements,
    wanted: MeasuredPlacements,
) -> Scored:  # fmt: skip
    job = replace(
        described_job(work, name=f"{cluster} {application}"), actuals=_actuals(cluster, known)
    )
    answers = answered(cluster, job, wanted.placements)
    found = Scored(
        cluster=cluster,
        application=application,
        measured_s=wanted.step_s,
        predicted_s=answers[:, 0],
        log_sd=answers[:, 1],
        workers=wanted.placements.workers,
    )
    return found.take(np.isfinite(found.predicted_s))


def answered(cluster: str, job: Job, wanted: Placements) -> Array:
    """Return the product's step [s] and log_sd of every placement; nan where it has none."""
    found = np.full((wanted.batch.size, 2), np.nan)
    asking = predictor()
    for nodes, per_node in sorted({*zip(wanted.nodes, wanted.per_node, strict=True)}):
        group = one_group(_machines(cluster, int(nodes), int(per_node)), asking.catalogue)
        fleet, row = own_fleet(group, asking.catalogue, asking.fleet, per_node=int(per_node))
        here = (wanted.nodes == nodes) & (wanted.per_node == per_node)
        for batch in np.unique(wanted.batch[here]):
            columns = asking.step_columns(
                replace(job, global_batch=round(nodes * per_node * batch)),
                np.array([row]), np.array([int(nodes)]), fleet=fleet,
            )  # fmt: skip
            if columns.status[0] == 0:
                found[here & (wanted.batch == batch)] = columns.step_s[0], columns.log_sd[0]
    return found


def _ruled(
    ours: Scored, rule: Baseline, size: float | None, known: MeasuredPlacements,
    wanted: MeasuredPlacements,
) -> Iterator[Scored]:  # fmt: skip
    predicted = rule(ours.cluster, size, known, wanted.placements)
    if predicted is not None and ours.measured_s.size == wanted.step_s.size:
        yield replace(ours, predicted_s=predicted, log_sd=np.zeros_like(predicted))


def _scores(scored: Sequence[Scored]) -> Scores:
    predicted = np.concatenate([s.predicted_s for s in scored])
    measured = np.concatenate([s.measured_s for s in scored])
    half = np.exp(REACH_90 * np.concatenate([s.log_sd for s in scored]))
    if np.all(half == 1.0):
        return score(predicted, measured)
    return score(predicted, measured, low=predicted / half, high=predicted * half)


def _means(by_rule: Mapping[str, Sequence[Scored]]) -> dict[str, float]:
    """Return means over applications by cluster, ours and every rule's."""
    return {
        f"{cluster}: {name}": round(
            float(np.mean([s.mape for s in scored if s.cluster == cluster])), 4
        )
        for name, scored in by_rule.items()
        for cluster in dict.fromkeys(s.cluster for s in scored)
    }


def _far(asked: Sequence[Scored]) -> dict[str, float]:
    """Return the error and coverage beyond three times the largest known size, and below."""
    figures: dict[str, float] = {}
    for name, sign in ((f"beyond {FAR} times the largest known size", 1), ("up to that", -1)):
        parts = [s.take(sign * s.workers > sign * (FAR * FEW + 0.5)) for s in asked]
        parts = [s for s in parts if s.measured_s.size]
        if parts:
            found = _scores(parts)
            figures |= {
                f"{name}: rows": float(found.rows),
                f"{name}: MAPE": found.mape_fraction,
                f"{name}: 90 % interval covers": found.coverage or 0.0,
            }
    return figures
