"""Protocol ``cluster``: samples/s of several nodes from runs of the same model on single nodes.

Known are the single-node runs of every model (the left-out one's too), the slowest link between
the sites, and the multi-node runs of the other models. Asked is what ``advisor simulate peers``
asks (``predict.peers``), with constants fitted without the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from advisor.planners.links.peers import Peers, rate_of_parts
from advisor.train.peer_rows import Floats, PeerRows, read_rows
from advisor.train.peers import fitted_rate
from advisor.validation.peer_answers import answered, by_model
from advisor.validation.scores import Group, Validation, score

_NOMINAL_BYTES_PER_S: Final = 1.25e9  # 10 Gbit/s: what the baseline believes of every link
SEEN: Final = (
    "the form of the equation, the floor on the epoch among it",
    "that intervals differ by whether a link between sites is crossed",
)


def run(data: Path) -> Validation:
    """Score every multi-node run, its model left out."""
    rows, _ = read_rows(data)
    low, rate, high = answered(rows, lambda known: fitted_rate(known, rate_of_parts)).T
    truth, peers = rows.samples_per_s, rows.asked
    is_far = np.isfinite(peers.link_bytes_per_s)
    linked = [
        Group(group=name, scores=score(rate[i], truth[i], low=low[i], high=high[i]))
        for name, i in (("one site", ~is_far), ("several sites", is_far))
        if i.any()
    ]
    return Validation(
        protocol="cluster",
        description="Samples/s of several nodes from single-node runs, each model left out.",
        form="chosen with these rows in sight",
        scores="what `advisor simulate peers` answers (predict.peers)",
        seen=SEEN,
        overall=score(rate, truth, low=low, high=high),
        groups=[*by_model(rows, rate, truth, (low, high)), *linked],
        baselines={
            "linear scaling": score(peers.samples_per_s, truth),
            "alpha-beta, links as measured": score(_alpha_beta(peers), truth),
        },
        figures={"repeat_scatter_fraction": _repeat_scatter(rows)},
        notes=[
            "links between sites are medians of the recordings' own iperf logs "
            "(records.importers.hivemind_sites)",
        ],
    )


def _alpha_beta(peers: Peers) -> Floats:
    """Send 2 bytes a parameter through the slowest link, 10 Gbit/s where there is one site."""
    link = np.minimum(peers.link_bytes_per_s, _NOMINAL_BYTES_PER_S)
    stall_s = peers.ring_gb * 2e9 / link
    alone_s = peers.target_samples / peers.samples_per_s
    return np.asarray(peers.target_samples / (alone_s + stall_s), float)


def _repeat_scatter(rows: PeerRows[Peers]) -> float:
    """Return the mean error of a repeat against its cell's mean: what cannot be beaten."""
    cells: dict[str, list[float]] = {}
    for key, value in zip(rows.keys, rows.samples_per_s.tolist(), strict=True):
        cells.setdefault(key, []).append(value)
    errors = [np.abs(np.array(v) / np.mean(v) - 1) for v in cells.values() if len(v) > 1]
    return float(np.mean(np.concatenate(errors))) if errors else 0.0
