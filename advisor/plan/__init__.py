"""The layout of a transformer on a cluster, and the arguments to run it with."""

from advisor.described import read_transformer
from advisor.plan.answer import Choice, Plan
from advisor.plan.planning import plan
from advisor.plan.request import PlanRequest

__all__ = ["Choice", "Plan", "PlanRequest", "plan", "read_transformer"]
