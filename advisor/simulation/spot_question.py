"""What is asked of a job on spot nodes."""

from __future__ import annotations

from dataclasses import dataclass

STARTS = 200  # submissions that are replayed, spread over the record


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotQuestion:
    """A job on spot nodes, its prices and limits.

    Prices are of one node; ``checkpoint_interval_s`` is None for a job that saves nothing;
    ``least_nodes`` can still run it; ``hazard`` is that of a removal, relative to the packaged
    records.
    """

    work_s: float
    nodes: int = 1
    restart_s: float = 300.0
    checkpoint_interval_s: float | None = 1800.0
    checkpoint_s: float = 0.0
    warning_s: float | None = None
    deadline_s: float | None = None
    price_usd_per_h: float = 1.0
    spot_price_usd_per_h: float = 0.3
    least_nodes: int = 1
    hazard: float = 1.0
