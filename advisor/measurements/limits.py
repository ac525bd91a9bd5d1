"""Load tests of containers whose limits are set in different ways."""

from __future__ import annotations

from typing import Final

from advisor.measurements.dataset import Dataset
from advisor.measurements.table import MS_PER_S, PublishedTable

ESCRA: Final = Dataset(
    name="escra",
    title="Escra's load tests of four applications",
    upstream=(),
    licence="facts: no licence file at gregcusack/Escra; figures counted from its raw load tests",
    ships=True,
    tables={
        "load_tests": PublishedTable(
            file="escra/load_tests.csv",
            published="systems/escra_public_runs.csv",
            columns={
                "application": "app",
                "load": "workload",
                "policy": "policy",
                "requests_per_s": "requests_per_s",
                "failed": "non2xx",
                "requests": "requests",
                "p50_s": "p50_ms",
                "p99_s": "p99_ms",
                "p999_s": "p999_ms",
            },
            divisors={"p50_s": MS_PER_S, "p99_s": MS_PER_S, "p999_s": MS_PER_S},
        )
    },
)
