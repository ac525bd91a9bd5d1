"""Bands of AWS Spot Advisor: how often spot instances are taken away, and the hazard meant."""

from __future__ import annotations

from typing import Final

import numpy as np

from advisor.planners.core.errors import PlanningError

# Share of instances taken away in the last month, by band, as the band's middle (0.25 for the open
# one). The hazard is relative to the open band, where we assume that the traced GPU types of
# 2022-2023 stood: the advisor's history does not say.
BAND_FRACTIONS: Final = {"<5%": 0.025, "5-10%": 0.075, "10-15%": 0.125, "15-20%": 0.175,
                         ">20%": 0.25}  # fmt: skip
BANDS: Final = tuple(BAND_FRACTIONS)


def hazard_of_band(band: str) -> float:
    """Return the hazard of an interruption band relative to the open one (``">20%"``).

    A share f taken in a month is a rate ``-ln(1 - f)`` a month.

    Raises
    ------
    PlanningError
        If there is no such band.

    Examples
    --------
    >>> round(hazard_of_band("<5%"), 3)
    0.088
    """
    if band not in BAND_FRACTIONS:
        raise PlanningError(
            f"no interruption band {band!r}",
            hint=f"one of {', '.join(BANDS)}",
            exit_code=2,
        )
    return float(np.log1p(-BAND_FRACTIONS[band]) / np.log1p(-BAND_FRACTIONS[">20%"]))
