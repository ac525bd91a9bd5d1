"""Protocol ``scaling``: an application's rows on at most four GPUs are known; predict the others.

Three ways of knowing, each scored as the mean over applications of the MAPE of step time:

- ``four``: the rows on at most four GPUs of all applications (the protocol; scored in detail),
  also without expecting growth beyond four (prior means 0),
- ``others``: besides, the other applications fully,
- ``one run``: the other applications fully, of this one its rows on one node of at most four GPUs
  and a single run on two full nodes, whose placement is not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.train.scaling_fit import CLUSTER_PRIORS, MeasuredPlacements, fit_cluster
from advisor.train.scaling_runs import ClusterRuns, read_clusters
from advisor.validation.scaling_baselines import BASELINES, Baseline
from advisor.validation.scores import Blind, Group, Scores, Validation, score

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]
FEW = 4  # GPUs of which everything is known
Z90 = 1.6449  # standard normal quantile: half of a 90 % interval
# Not scored: dgx repeats a part of dgx-ext; azure's GPU is not stated and its hosts are the limit.
UNSCORED = frozenset({"dgx", "azure"})
Priors = Mapping[str, tuple[float, float]]
# The growth terms as wide, but expected to be nothing: what the law does without that knowledge.
NO_GROWTH: Final[Priors] = dict(CLUSTER_PRIORS) | {
    "intra_crossing": (0.0, 0.3),
    "crossing": (0.0, 0.3),
    "node_doubling": (0.0, 0.3),
    "contention_doubling": (0.0, 0.1),
    "straggler_doubling": (0.0, 0.03),
}
SEEN: Final = (
    "the law's form, the noise of a row and the priors' widths: after seeing residuals of these "
    "rows",
    "the prior means of what grows with scale: partly ('no growth expected' has them at 0)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Predictions of one application's rows on more than four GPUs; no intervals: log_sd 0."""

    cluster: str
    application: str
    measured_s: Array
    predicted_s: Array
    log_sd: Array

    @property
    def mape(self) -> float:
        """Mean absolute percentage error as a fraction."""
        return float(np.mean(np.abs(self.predicted_s / self.measured_s - 1.0)))


def run(data: Path) -> Validation:
    """Score the scaling law on the placement tables under ``data``.

    Raises
    ------
    ModelError
        If the tables are not there, or nothing in them can be scored.
    """
    clusters = {name: runs for name, runs in read_clusters(data).items() if name not in UNSCORED}
    law = {
        name: [scored for cluster, runs in clusters.items() for scored in knowing(cluster, runs)]
        for name, knowing in _KNOWING.items()
    }
    if not law["four"]:
        raise ModelError("no application has rows both on at most and on more than four GPUs")
    baselines = {
        name: [s for cluster, runs in clusters.items() for s in _baseline(cluster, runs, predict)]
        for name, predict in BASELINES.items()
    }
    rows = {(s.cluster, s.application): s for s in law["four"]}
    beside = {
        name: _scores([rows[s.cluster, s.application] for s in own])
        for name, own in baselines.items()
        if own
    }
    return Validation(
        protocol="scaling",
        description="step time on more than 4 GPUs from the rows on at most 4, by application",
        form="chosen with these rows in sight",
        scores="the fitted law of advisor.train.scaling_fit, which no verb asks",
        seen=SEEN,
        overall=_scores(law["four"]),
        groups=[_group(s, baselines) for s in law["four"]],
        baselines={name: _scores(own) for name, own in baselines.items() if own},
        beside=beside,
        figures=_means(law, baselines),
        notes=[
            "figures: mean over applications of the MAPE of step time, as a fraction",
            "the law's form, noise and prior widths were chosen after seeing residuals of these "
            "rows; 'no growth expected' has the growth terms' prior means at 0",
        ],
    )


def _group(own: Scored, baselines: Mapping[str, Sequence[Scored]]) -> Group:
    """Return one application's scores and those of the baselines that answer for it."""
    return Group(
        group=f"{own.cluster} {own.application}",
        scores=_scores([own]),
        baselines={
            name: _scores([s])
            for name, scored in baselines.items()
            for s in scored
            if (s.cluster, s.application) == (own.cluster, own.application)
        },
    )


def blind(data: Path, shipped: Validation) -> Blind:
    """Score the same rows with nothing expected of what grows with scale."""
    clusters = {name: runs for name, runs in read_clusters(data).items() if name not in UNSCORED}
    found = [s for cluster, runs in clusters.items() for s in _four_blind(cluster, runs)]
    return Blind(
        overall=_scores(found),
        groups=[Group(group=f"{s.cluster} {s.application}", scores=_scores([s])) for s in found],
        changed=("the prior means of what grows with scale are 0",),
        still_seen=shipped.seen[:1],
    )


def _means(
    law: Mapping[str, Sequence[Scored]], baselines: Mapping[str, Sequence[Scored]]
) -> dict[str, float]:
    """Return means over applications by cluster, a baseline's beside ours on its applications."""
    figures = {}
    for name, scored in {**law, **baselines}.items():
        for cluster in dict.fromkeys(s.cluster for s in scored):
            own = [s for s in scored if s.cluster == cluster]
            figures[f"{cluster}: {name}"] = round(float(np.mean([s.mape for s in own])), 4)
            asked = {s.application for s in own}
            ours = [s for s in law["four"] if s.cluster == cluster]
            same = [s.mape for s in ours if s.application in asked]
            if name in baselines and len(same) < len(ours):
                mean = round(float(np.mean(same)), 4)
                figures[f"{cluster}: four, on the applications of {name}"] = mean
    return figures


def _scores(scored: Sequence[Scored]) -> Scores:
    predicted = np.concatenate([s.predicted_s for s in scored])
    measured = np.concatenate([s.measured_s for s in scored])
    half = np.exp(Z90 * np.concatenate([s.log_sd for s in scored]))
    if np.all(half == 1.0):
        return score(predicted, measured)
    return score(predicted, measured, low=predicted / half, high=predicted * half)


def _four(cluster: str, runs: ClusterRuns) -> Iterator[Scored]:
    few = runs.measured.placements.workers <= FEW
    yield from _fitted(cluster, runs, few, ~few)


def _four_blind(cluster: str, runs: ClusterRuns) -> Iterator[Scored]:
    few = runs.measured.placements.workers <= FEW
    yield from _fitted(cluster, runs, few, ~few, NO_GROWTH)


def _others(cluster: str, runs: ClusterRuns) -> Iterator[Scored]:
    few = runs.measured.placements.workers <= FEW
    for index in _applications_with_others(runs):
        own = runs.measured.placements.application == index
        yield from _fitted(cluster, runs, ~own | few, own & ~few)


def _one_run(cluster: str, runs: ClusterRuns) -> Iterator[Scored]:
    places = runs.measured.placements
    for index in _applications_with_others(runs):
        own = places.application == index
        pairs = own & runs.is_placement & (places.nodes == 2) & (places.workers > FEW)
        if not pairs.any():
            continue
        full = pairs & (places.workers == places.workers[pairs].max())
        batches = np.unique(places.batch[full])
        one = full & (places.batch == batches[batches.size // 2])
        few = own & (places.workers <= FEW) & (places.nodes == 1)
        yield from _fitted(cluster, runs, ~own | few | one, own & (places.workers > FEW) & ~full)


def _applications_with_others(runs: ClusterRuns) -> range:
    return range(len(runs.applications)) if len(runs.applications) > 1 else range(0)


def _fitted(
    cluster: str, runs: ClusterRuns, known: Rows, wanted: Rows, priors: Priors = CLUSTER_PRIORS
) -> Iterator[Scored]:
    """Fit on ``known``, predict ``wanted``; applications without a known row are left out."""
    places = runs.measured.placements
    seen = np.unique(places.application[known])
    if not seen.size:
        return
    code = np.full(len(runs.applications), -1)
    code[seen] = np.arange(seen.size)

    def recoded(rows: Rows) -> MeasuredPlacements:
        chosen = runs.take(rows)
        application = code[chosen.placements.application]
        return replace(chosen, placements=replace(chosen.placements, application=application))

    fit = fit_cluster(
        recoded(known), [runs.gradient_bytes[i] for i in seen], cluster_priors=priors
    )
    for index in seen:
        rows = wanted & (places.application == index)
        if rows.any():
            own = recoded(rows)
            predicted, log_sd = fit.predict(own.placements)
            yield Scored(
                cluster=cluster,
                application=runs.applications[index],
                measured_s=own.step_s,
                predicted_s=predicted,
                log_sd=log_sd,
            )


def _baseline(cluster: str, runs: ClusterRuns, predict: Baseline) -> Iterator[Scored]:
    """Each application alone: its rows on at most four GPUs are known."""
    places = runs.measured.placements
    for index, application in enumerate(runs.applications):
        own = places.application == index
        known = runs.take(own & (places.workers <= FEW))
        wanted = runs.take(own & (places.workers > FEW))
        if not (known.step_s.size and wanted.step_s.size):
            continue
        predicted = predict(cluster, runs.gradient_bytes[index], known, wanted.placements)
        if predicted is not None:
            yield Scored(
                cluster=cluster,
                application=application,
                measured_s=wanted.step_s,
                predicted_s=predicted,
                log_sd=np.zeros_like(predicted),
            )


_KNOWING: Final[Mapping[str, Callable[[str, ClusterRuns], Iterator[Scored]]]] = {
    "four": _four,
    "four, no growth expected": _four_blind,
    "others": _others,
    "one run": _one_run,
}
