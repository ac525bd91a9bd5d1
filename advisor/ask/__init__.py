"""The question: which job, under which constraints, in which layout, with which software.

``Question`` is one record that the command line, Python's keywords, a project file and JSON fill
alike; ``entries.ENTRIES`` lists every name with its help.
"""

from __future__ import annotations

from advisor.ask.entries import ALIASES, ENTRIES, Entry
from advisor.ask.records import ClusterRequest, Constraints, JobSpec, LayoutRequest, SetupRequest
from advisor.ask.sources import Question, flag_of, merged, read_question

__all__ = [
    "ALIASES",
    "ENTRIES",
    "ClusterRequest",
    "Constraints",
    "Entry",
    "JobSpec",
    "LayoutRequest",
    "Question",
    "SetupRequest",
    "flag_of",
    "merged",
    "read_question",
]
