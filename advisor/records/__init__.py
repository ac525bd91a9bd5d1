"""Labelled runs: what the learned models are fitted on, and the files that hold them.

Names are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.records.files import from_row as from_row
    from advisor.records.files import iterate_records as iterate_records
    from advisor.records.files import read_records as read_records
    from advisor.records.files import to_line as to_line
    from advisor.records.files import write_records as write_records
    from advisor.records.nouns import CHANNELS as CHANNELS
    from advisor.records.nouns import SCHEMA_VERSION as SCHEMA_VERSION
    from advisor.records.nouns import AnchorRun as AnchorRun
    from advisor.records.nouns import Fact as Fact
    from advisor.records.nouns import Instances as Instances
    from advisor.records.nouns import JobFacts as JobFacts
    from advisor.records.nouns import ResourceSeries as ResourceSeries
    from advisor.records.nouns import RunRecord as RunRecord

_HOME = {
    "CHANNELS": "nouns",
    "SCHEMA_VERSION": "nouns",
    "AnchorRun": "nouns",
    "Fact": "nouns",
    "Instances": "nouns",
    "JobFacts": "nouns",
    "ResourceSeries": "nouns",
    "RunRecord": "nouns",
    "from_row": "files",
    "iterate_records": "files",
    "read_records": "files",
    "to_line": "files",
    "write_records": "files",
}
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'advisor.records' has no attribute {name!r}")
    return getattr(importlib.import_module(f"advisor.records.{_HOME[name]}"), name)
