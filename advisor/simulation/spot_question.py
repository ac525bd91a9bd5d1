"""A question about a job on spot nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from advisor.planners.spot.availability import SpotJob

STARTS = 200  # submissions that are replayed, spread over the record


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotQuestion:
    """A job on spot nodes, its prices and limits.

    Prices are of one node; the job's checkpoint interval is inf where it saves nothing;
    ``least_nodes`` can still run it; ``hazard`` is that of a removal, relative to the packaged
    records.
    """

    job: SpotJob
    nodes: int = 1
    deadline_s: float | None = None
    price_usd_per_h: float = 1.0
    spot_price_usd_per_h: float = 0.3
    least_nodes: int = 1
    hazard: float = 1.0

    @property
    def saves_checkpoints(self) -> bool:
        """Say whether there is anything to start from after a removal."""
        return bool(np.isfinite(self.job.checkpoint_interval_s))

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form: one row of figures."""
        record = asdict(self)
        job: dict[str, Any] = record.pop("job")
        if not self.saves_checkpoints:
            job["checkpoint_interval_s"] = None
        return job | record
