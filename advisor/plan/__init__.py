"""The layout of a transformer or a recorded run on a cluster, and the arguments to run it with."""

from advisor.described import read_transformer
from advisor.plan.answer import Choice, Plan
from advisor.plan.planning import plan
from advisor.plan.recorded_planning import plan_recorded
from advisor.plan.recorded_request import RecordedRequest
from advisor.plan.request import PlanRequest

__all__ = [
    "Choice",
    "Plan",
    "PlanRequest",
    "RecordedRequest",
    "plan",
    "plan_recorded",
    "read_transformer",
]
