"""The nouns of the advisor: what is sold, what is proposed, what is believed about it. No I/O."""

from advisor.domain.candidate import (
    Answer,
    Bottleneck,
    Candidate,
    Command,
    TrainingUnits,
    Utilisation,
)
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
    KnownError,
    Named,
    Prices,
    ProbeAdvice,
    ProposedChange,
    Recommendation,
)
from advisor.domain.records import SCHEMA_VERSION, Recorded, from_record, to_record

__all__ = [
    "COMPLETIONS",
    "QUANTILES",
    "REACH_90",
    "SCHEMA_VERSION",
    "Alternative",
    "Answer",
    "Bill",
    "Bottleneck",
    "Candidate",
    "Command",
    "CompletionWay",
    "Configuration",
    "Estimate",
    "Explanation",
    "Fact",
    "KnownError",
    "Named",
    "Offer",
    "Part",
    "Predictions",
    "Prices",
    "ProbeAdvice",
    "ProposedChange",
    "Recommendation",
    "Recorded",
    "Refused",
    "Source",
    "TrainingUnits",
    "Utilisation",
    "from_record",
    "to_record",
]
