r"""Fit the constants of peers that gather a batch together (``planners.links.peers``).

On Hivemind's published recordings (``advisor data fetch hivemind``): constants by trust-region
least squares of relative errors with a soft-L1 loss and a weak Gaussian prior; the intervals from
the errors on each model while it is left out of the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.domain import QUANTILES
from advisor.learned.conformal import calibrate
from advisor.planners.links.peers import (
    FirstMinutes,
    PeerParameters,
    Peers,
    rate_after_a_minute,
    rate_of_parts,
)
from advisor.predict.peers import FittedRate, PeerModel
from advisor.train.fits import FittedFolder
from advisor.train.peer_rows import PeerRows, read_rows
from advisor.ways.parameters import DIGITS

Floats = NDArray[np.float64]
Asked = TypeVar("Asked", Peers, FirstMinutes)

_PULL: Final = 0.1  # a constant one prior deviation off weighs as much as an error of 10 %
_USUAL_ERROR: Final = 0.1  # errors beyond 10 % count linearly
# Logarithms of the constants but for the growth, in the order of ``PeerParameters``; 2 s and more
# for a peer to find the others, a ring of 16-bit gradients over 10 Gbit/s, the physics' own 1 for
# the links, sharpness less 1.
_MEDIANS: Final = np.array([*np.log([1.0, 8.0, 16.0, 15.0, 3.0]), 0.0, 0.0, np.log(2.0)])
_DEVIATIONS: Final = np.array([0.1, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 1.0]) / 3.0
_SHARPEST: Final = 50.0
_LEAST_FAR_ROWS: Final = 20  # fewer say nothing of intervals: those of all rows stand for them


def fitted(given: Path | None, day: str) -> FittedFolder:
    """Fit the model of peers that share a batch across sites."""
    parts, minutes = read_rows(packaged.measurements(given))
    of_parts = left_out(parts, rate_of_parts)[0]
    of_minutes = left_out(minutes, rate_after_a_minute)[0]
    model = PeerModel(
        parts=_fitted(parts, rate_of_parts, of_parts),
        minute=_fitted(minutes, rate_after_a_minute, of_minutes),
    )
    return FittedFolder(
        files={"parameters.json": model.to_text()},
        metrics={"parts": _metrics(of_parts, parts), "minute": _metrics(of_minutes, minutes)},
    )


def fitted_rate(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats]
) -> FittedRate:
    """Return the constants that fit some rows, with intervals from models left out in turn."""
    return _fitted(rows, form, left_out(rows, form)[0])


def _fitted(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats], rates: Floats
) -> FittedRate:
    """Return the constants; ``rates`` are those of each row's model left out."""
    errors = np.log(rates / rows.samples_per_s)
    is_far = np.isfinite(rows.peers.link_bytes_per_s)
    widths: dict[bool, dict[float, float]] = {}
    for far in (True, False):
        some = is_far == far
        if some.sum() < _LEAST_FAR_ROWS:
            some = np.ones(len(errors), bool)
        found = calibrate(np.zeros((some.sum(), 1)), errors[some], rows.models[some])
        widths[far] = {c: _rounded(found.half_width(np.zeros((1, 1)), c)[0]) for c in QUANTILES}
    return FittedRate(constants=constants_of(rows, form), half_widths=widths)


def left_out(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats]
) -> tuple[Floats, dict[str, PeerParameters]]:
    """Return the rate of every row by constants fitted without its model, and those constants."""
    rates = np.empty(len(rows.samples_per_s))
    found: dict[str, PeerParameters] = {}
    for model in np.unique(rows.models).tolist():
        out = rows.models == model
        found[model] = constants_of(rows.take(np.flatnonzero(~out)), form)
        rates[out] = form(rows.asked.take(np.flatnonzero(out)), found[model])
    return rates, found


def constants_of(
    rows: PeerRows[Asked], form: Callable[[Asked, PeerParameters], Floats]
) -> PeerParameters:
    """Return the constants that fit some rows best."""
    from scipy.optimize import least_squares

    def misses(theta: Floats) -> Floats:
        errors = form(rows.asked, _constants(theta)) / rows.samples_per_s - 1.0
        return np.concatenate([errors, _PULL * (theta - _MEDIANS) / _DEVIATIONS])

    found = least_squares(misses, _MEDIANS, loss="soft_l1", f_scale=_USUAL_ERROR, diff_step=1e-4)
    return _constants(np.asarray(found.x, float), is_rounded=True)


def _constants(theta: Floats, *, is_rounded: bool = False) -> PeerParameters:
    values = np.exp(theta)
    values[4] = 1.0 + min(values[4], _SHARPEST)
    values[5] = theta[5]
    return PeerParameters(**{
        name: _rounded(value) if is_rounded else float(value)
        for name, value in zip(PeerParameters.__slots__, values, strict=True)
    })  # fmt: skip


def _rounded(value: Any) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def _metrics(rates: Floats, rows: PeerRows[Any]) -> dict[str, float]:
    errors = np.abs(rates / rows.samples_per_s - 1.0)
    return {
        "rows": float(len(errors)), "models left out in turn": float(np.unique(rows.models).size),
        "mape_fraction": float(errors.mean()),
        "median_ape_fraction": float(np.median(errors)),
    }  # fmt: skip
