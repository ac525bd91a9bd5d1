"""Records of answers as pandas tables, and tables as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from advisor.words import machines_words

if TYPE_CHECKING:
    import pandas as pd

_ESTIMATES: Final = ("training_time_h", "cost_usd", "step_time_s", "throughput_samples_per_s")


def answers_frame(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row a candidate; bounds are columns of their own.

    Records without an answer have a ``reason``; the table has that column if one does.
    """
    import pandas as pd

    return pd.DataFrame([dict(one) if "reason" in one else answer_row(one) for one in records])


def answer_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a candidate's record as one flat row."""
    parts = record["configuration"]

    def joined(name: str) -> str:
        return " + ".join(dict.fromkeys(str(part[name]) for part in parts))

    row: dict[str, Any] = {
        "rank": record["rank"],
        "configuration": machines_words(parts),
        **{name: joined(name) for name in ("provider", "region", "pricing")},
        "completion": record["completion"],
        "way": record["way"],
    }
    row |= bounds_of(record, _ESTIMATES)
    return row | {
        name: record[name] for name in ("memory_gib", "bottleneck", "extrapolating", "learned")
    }


def bounds_of(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, float | None]:
    """Return estimates of a record as columns: each with its bounds, None where there is none."""
    row: dict[str, float | None] = {}
    for name in names:
        found = record[name] or {}
        row |= {name: found.get("value"), f"{name}_low": found.get("low"),
                f"{name}_high": found.get("high")}  # fmt: skip
    return row


def table_html(frame: pd.DataFrame) -> str:
    """Return a table for a notebook; pandas escapes what it prints."""
    return str(frame.to_html(index=False, na_rep=""))
