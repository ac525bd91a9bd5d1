"""Intervals from few groups: by how much a deviation known from n of them is to be widened."""

from __future__ import annotations

from typing import Final

from advisor.domain import QUANTILES

COVERAGE: Final = 0.9  # of the intervals that fitted deviations are made for


def widening(groups: int) -> float:
    """Return Student's quantile over the normal one, with as many degrees of freedom as groups.

    A root mean square about zero of n independent normal errors has n of them. The product takes
    its quantile from the normal distribution, so the deviation carries what few groups leave open.

    Examples
    --------
    >>> round(widening(1), 2), round(widening(3), 2), round(widening(1000), 2)
    (3.84, 1.43, 1.0)
    """
    from scipy.stats import t

    return float(t.ppf(0.5 + COVERAGE / 2, groups) / QUANTILES[COVERAGE])
