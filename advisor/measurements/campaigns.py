"""Whole training runs as published: read by ``advisor.records.campaigns``, in both forms."""

from __future__ import annotations

from typing import Final

from advisor.measurements.dataset import Dataset
from advisor.measurements.table import PublishedTable

CAMPAIGNS: Final = Dataset(
    name="campaigns",
    title="published training runs",
    upstream=(),
    licence="facts, with their source in every row",
    ships=True,
    tables={
        "runs": PublishedTable(
            file="campaigns/campaigns.csv",
            published="measurements/campaigns/campaigns.csv",
            columns={},
            tell=frozenset({"campaign", "model", "accelerator", "accelerators", "year"}),
        )
    },
)
