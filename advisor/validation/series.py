"""Protocol ``series``: seconds per million samples from the first minute of the run itself.

Known are the first 60 s of network readings and step records after each node's first step, the
job's settings and the link between its sites. Asked is what ``advisor simulate peers --running``
asks (``predict.peers``), with constants fitted without the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from advisor.planners.links.peers import rate_after_a_minute
from advisor.train.peer_rows import read_rows
from advisor.train.peers import fitted_rate
from advisor.validation.peer_answers import answered, by_model
from advisor.validation.scores import Validation, score

SEEN: Final = (
    "the form of the equation, what a peer that waits sends, and what ends a run",
    "that intervals differ by whether a link between sites is crossed",
)


def run(data: Path) -> Validation:
    """Score the first minute of every run, its model left out."""
    _, rows = read_rows(data)
    low, rate, high = answered(rows, lambda known: fitted_rate(known, rate_after_a_minute)).T
    truth, seen = 1e6 / rows.samples_per_s, rows.asked
    return Validation(
        protocol="series",
        description="Seconds per million samples from the first minute, each model left out.",
        form="chosen with these rows in sight",
        scores="what `advisor simulate peers --running` answers (predict.peers)",
        seen=SEEN,
        overall=score(1e6 / rate, truth, low=1e6 / high, high=1e6 / low),
        groups=by_model(rows, 1e6 / rate, truth, (1e6 / high, 1e6 / low)),
        baselines={
            "extrapolate the minute": score(1e6 / seen.window_per_s, truth),
        },
        notes=["the label of most models was inferred from step times (SOURCE.md)"],
    )
