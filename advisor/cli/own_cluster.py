"""The options of ``advisor recommend`` that name the user's own shared cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.domain import Recommendation
    from advisor.jobs.job import Job
    from advisor.predict import Predictor
    from advisor.question import Question
    from advisor.simulation.own_cluster import ClusterComparison


def comparison(
    question: Question, job: Job, answer: Recommendation, predictor: Predictor
) -> ClusterComparison | None:
    """Return the comparison that the question asks for, None where it names no cluster.

    Raises UsageError if one of trace and machines is missing; otherwise as
    ``compare_with_cluster``.
    """
    asked, constraints = question.cluster, question.constraints
    if asked.trace is None and asked.machines is None:
        return None
    if asked.trace is None or asked.machines is None:
        raise UsageError(
            "--cluster-trace and --cluster are needed together",
            hint="--cluster-trace sacct.txt --cluster 10x4xV100-SXM2-16GB@100Gbps",
        )
    from advisor.simulation.own_cluster import compare_with_cluster

    return compare_with_cluster(
        job,
        answer,
        trace=asked.trace,
        cluster=asked.machines,
        policy=asked.policy,
        devices=asked.devices or None,
        consolidated=asked.is_consolidated,
        price_usd_per_device_h=asked.price_usd_per_device_h,
        deadline=constraints.deadline_h,
        budget=constraints.budget_usd,
        coverage=constraints.coverage,
        predictor=predictor,
    )
