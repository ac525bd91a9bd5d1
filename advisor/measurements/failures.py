"""Interruptions of a large training run, as published."""

from __future__ import annotations

from typing import Final

from advisor.measurements.dataset import Dataset
from advisor.measurements.table import PublishedTable

FAILURES: Final = Dataset(
    name="failures",
    title="the interruptions of Llama 3's training run",
    upstream=(),
    licence="facts: one table of a paper, with its source in every row",
    ships=True,
    tables={
        "interruptions": PublishedTable(
            file="failures/interruptions.csv",
            published="measurements/failures/llama3_interruptions.csv",
            columns={
                "component": "component",
                "category": "category",
                "interruptions": "count",
                "interruptions_of_all": "total_unexpected",
                "accelerators": "gpus",
                "days": "days",
                "source": "source",
            },
        )
    },
)
