"""A measured step of a described job: what the suites of ``described_rows`` consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from advisor.planners.core.nouns import Device, Operator, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step of a described job."""

    seconds: float  # of the phases among ``operators`` [s]
    # what was timed: no optimizer where the suite leaves the update out
    operators: tuple[Operator, ...]
    work: Work  # the whole step, at the measured micro-batch, in the precision that was run
    device: Device
    is_half: bool
    has_update: bool
    model: str
    family: str
    suite: str


# A sweep's rows of one (GPU, model, precision) beyond this many say nothing new.
MOST_OF_A_SWEEP: Final = 8


def thinned(frame: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """Return at most ``MOST_OF_A_SWEEP`` rows of each group, evenly from first to last."""
    return pd.concat(
        [
            sweep.iloc[np.unique(np.linspace(0, len(sweep) - 1, MOST_OF_A_SWEEP).astype(int))]
            for _, sweep in frame.groupby(labels)
        ]
    )
