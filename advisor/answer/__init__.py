"""The nouns of the advisor: what is sold, what is proposed, what is believed about it. No I/O."""

from advisor.answer.candidate import (
    Answer,
    Bottleneck,
    Candidate,
    Command,
    TrainingUnits,
    Utilisation,
)
from advisor.answer.estimate import Estimate
from advisor.answer.offers import (
    COMPLETIONS,
    Alternative,
    Bill,
    CompletionWay,
    Configuration,
    Fact,
    Offer,
    Part,
    Source,
)
from advisor.answer.predictions import Explanation, Predictions, Refused
from advisor.answer.recommendation import (
    KnownError,
    Named,
    Prices,
    ProbeAdvice,
    ProposedChange,
    Recommendation,
)
from advisor.answer.records import SCHEMA_VERSION, Recorded, from_record, to_record
from advisor.quantities import QUANTILES, REACH_90

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
