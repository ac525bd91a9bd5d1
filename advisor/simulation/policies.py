"""All policies side by side on one cluster's jobs: what another one would give its users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.planners.core.units import HOUR_S
from advisor.planners.queueing.nouns import POLICIES, Policy, QueueParameters
from advisor.planners.queueing.simulator import simulate_queue
from advisor.simulation.queue_now import OwnCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """The trace's own jobs under a policy.

    Attributes
    ----------
    mean_completion_h, mean_delay_h, p90_delay_h : float
        Submission to end; of it what is not computing. [h]
    completion_factor : float
        Mean completion, by that of the cluster's own policy.
    """

    policy: Policy
    mean_completion_h: float
    mean_delay_h: float
    p90_delay_h: float
    completion_factor: float


def side_by_side(own: OwnCluster, parameters: QueueParameters) -> tuple[PolicyOutcome, ...]:
    """Return every policy on the same jobs, the shortest mean completion first.

    Parameters
    ----------
    own : OwnCluster
        Its own policy is what the others are held against.
    """
    outcomes = {
        policy: simulate_queue(
            own.trace.jobs, own.cluster, policy, placement=own.placement, parameters=parameters
        )
        for policy in POLICIES
    }
    reference = float(outcomes[own.policy].completion_s.mean())
    found = [
        PolicyOutcome(
            policy=policy,
            mean_completion_h=float(one.completion_s.mean()) / HOUR_S,
            mean_delay_h=float(one.delay_s.mean()) / HOUR_S,
            p90_delay_h=float(np.quantile(one.delay_s, 0.9)) / HOUR_S,
            completion_factor=float(one.completion_s.mean()) / reference,
        )
        for policy, one in outcomes.items()
    ]
    return tuple(sorted(found, key=lambda one: one.mean_completion_h))
