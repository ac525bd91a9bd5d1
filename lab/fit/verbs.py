"""The verbs of ``advisor train`` that fit the constants that ship: read, fit, write, all alike."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from advisor.quantities import QUANTILES
from advisor.records import reads
from advisor.train import folder as model_folder

# Verb -> (folder of ``trained_models``, module with ``fitted``), in the order in which one uses
# the constants of another. Seconds of CPU on 2026-11-22: trained_models/README.md.
FITS: Final = {
    "device-model": ("device_model", "advisor.lab.fit.device"),
    "layout-model": ("layout_model", "advisor.lab.fit.layouts"),
    "memory": ("memory", "advisor.lab.fit.memory"),
    "scaling": ("scaling", "advisor.lab.fit.scaling"),
    "campaigns": ("campaign", "advisor.lab.fit.campaigns"),
    "peers": ("peers", "advisor.lab.fit.peers"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFolder:
    """What a module of ``FITS`` makes of measurements."""

    files: Mapping[str, str]  # file name -> content
    metrics: Mapping[str, Any]  # how wrong it is, see ``model_folder.write``
    told: str = ""  # what is printed of it, beside where it was written


def fit(verb: str, given: Path | None, out: Path | None, day: str | None) -> None:
    """Fit what a verb fits on what ``--data`` names, and write it to its folder."""
    name, module = FITS[verb]
    stated, folder = model_folder.day_of(day), model_folder.target(out, name)
    with reads.tables_read() as inputs:
        made: FittedFolder = importlib.import_module(module).fitted(given, stated)
    origin = model_folder.origin(verb, inputs, stated, model_folder.option("--data", given))
    model_folder.write(name, folder, origin, made.files, made.metrics)
    typer.echo(f"{folder}: {made.told}" if made.told else f"wrote {folder}")


# ------------------------------------------------------------------------------------------
# Intervals from few groups: by how much a deviation known from n of them is to be widened.


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


def log_errors(errors: NDArray[np.float64]) -> dict[str, float]:
    """Return rows, mean and median of |ln(predicted / measured)|, as metrics have them."""
    return {
        "rows": int(errors.size),
        "mean_log_error": round(float(errors.mean()), 4),
        "median_log_error": round(float(np.median(errors)), 4),
    }
