"""From a minute of a training script to the cloud machines to rent, with time, cost and layout.

Names are imported when they are used: ``import advisor`` itself loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.advice.facts import Advice as Advice
    from advisor.advice.facts import AdviceList as AdviceList
    from advisor.answer import Candidate as Candidate
    from advisor.answer import Configuration as Configuration
    from advisor.answer import Estimate as Estimate
    from advisor.answer import Offer as Offer
    from advisor.answer import Recommendation as Recommendation
    from advisor.api import advise as advise
    from advisor.api import recommend as recommend
    from advisor.api import report_page as report_page
    from advisor.ask import Question as Question
    from advisor.catalogue import Catalogue as Catalogue
    from advisor.collectors.callbacks import hugging_face_callback as hugging_face_callback
    from advisor.collectors.callbacks import lightning_callback as lightning_callback
    from advisor.collectors.marker import step as step
    from advisor.collectors.run.runner import profile as profile
    from advisor.estimate.predictor import Predictor as Predictor
    from advisor.export.targets import export_to as export_to
    from advisor.jobs.job import Job as Job
    from advisor.jobs.load import load_job as load_job
    from advisor.simulate.own_cluster import compare_with_cluster as compare_with_cluster

_HOME = {
    "Advice": "advisor.advice.facts",
    "AdviceList": "advisor.advice.facts",
    "Candidate": "advisor.answer",
    "Catalogue": "advisor.catalogue",
    "Configuration": "advisor.answer",
    "Estimate": "advisor.answer",
    "Job": "advisor.jobs.job",
    "Offer": "advisor.answer",
    "Predictor": "advisor.estimate.predictor",
    "Question": "advisor.ask",
    "Recommendation": "advisor.answer",
    "advise": "advisor.api",
    "compare_with_cluster": "advisor.simulate.own_cluster",
    "export_to": "advisor.export.targets",
    "hugging_face_callback": "advisor.collectors.callbacks",
    "lightning_callback": "advisor.collectors.callbacks",
    "load_job": "advisor.api",
    "profile": "advisor.collectors.run.runner",
    "recommend": "advisor.api",
    "report_page": "advisor.api",
    "step": "advisor.collectors.marker",
}
__all__ = [
    "Advice",
    "AdviceList",
    "Candidate",
    "Catalogue",
    "Configuration",
    "Estimate",
    "Job",
    "Offer",
    "Predictor",
    "Question",
    "Recommendation",
    "advise",
    "compare_with_cluster",
    "export_to",
    "hugging_face_callback",
    "lightning_callback",
    "load_job",
    "profile",
    "recommend",
    "report_page",
    "step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
