"""The nouns of the advisor: what is sold, what is proposed, what is believed about it. No I/O."""

from advisor.domain.candidate import Bottleneck, Candidate, TrainingUnits, Utilisation
from advisor.domain.estimate import QUANTILES, REACH_90, Estimate
from advisor.domain.facts import Fact, Source
from advisor.domain.offers import (
    COMPLETIONS,
    Alternative,
    Bill,
    CompletionWay,
    Configuration,
    Offer,
    Part,
)
from advisor.domain.predictions import Explanation, Predictions, Refused
from advisor.domain.recommendation import (
    SCHEMA_VERSION,
    KnownError,
    ProbeAdvice,
    ProposedChange,
    Recommendation,
)

__all__ = [
    "COMPLETIONS",
    "QUANTILES",
    "REACH_90",
    "SCHEMA_VERSION",
    "Alternative",
    "Bill",
    "Bottleneck",
    "Candidate",
    "CompletionWay",
    "Configuration",
    "Estimate",
    "Explanation",
    "Fact",
    "KnownError",
    "Offer",
    "Part",
    "Predictions",
    "ProbeAdvice",
    "ProposedChange",
    "Recommendation",
    "Refused",
    "Source",
    "TrainingUnits",
    "Utilisation",
]
