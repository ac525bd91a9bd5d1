"""Labelled runs: what the learned models are fitted on, and the files that hold them."""

from advisor.records.files import from_row, iterate_records, read_records, to_line, write_records
from advisor.records.nouns import (
    CHANNELS,
    SCHEMA_VERSION,
    AnchorRun,
    Fact,
    Instances,
    JobFacts,
    ResourceSeries,
    RunRecord,
)

__all__ = [
    "CHANNELS",
    "SCHEMA_VERSION",
    "AnchorRun",
    "Fact",
    "Instances",
    "JobFacts",
    "ResourceSeries",
    "RunRecord",
    "from_row",
    "iterate_records",
    "read_records",
    "to_line",
    "write_records",
]
