"""The first minute of peers that train together: facts of each one, and of all.

A peer is a recording of ``advisor profile`` made while the others train too, or a node of
Hivemind's published recordings. Steps that take much longer than the others waited for a
synchronisation; after the last step of a minute a peer may be waiting for one that has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.collectors.recording import Recording
from advisor.errors import RunError
from advisor.planners.links.peers import FirstMinutes, Peers

Floats = NDArray[np.float64]

WINDOW_S: Final = 60.0
_LONG: Final = 4.0  # a step this many times the third quartile waited for a synchronisation
_LEAST_STALL_S: Final = 1.5
_APART_S: Final = 3.0  # synchronisations nearer to one another are one
_MARGIN_S: Final = 3.0  # readings that end this long before the window: the run itself ended
_LEAST_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSeries:
    """One peer from its first step on."""

    step_samples: float  # samples of one of its steps
    # step_t_s, step_s: (steps,); when each step ended since the first, and how long it took [s]
    step_t_s: Floats
    step_s: Floats
    # (steps,); synchronisations so far; where nobody counts them, steps that waited for one
    synchronised: Floats
    # reading_t_s, sent_bytes_per_s: (readings,)
    reading_t_s: Floats
    sent_bytes_per_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMinute:
    """What one peer's first minute showed; times in s, rates in samples/s.

    ``running_per_s`` is its rate while it does not wait, ``sent_bytes_per_s`` nan where it does
    not wait at the end, ``between_per_s`` nan with fewer than two synchronisations.
    """

    window_per_s: float
    running_per_s: float
    seen_stall_s: float
    synchronisations: float
    is_stalled: bool
    stalled_s: float
    sent_bytes_per_s: float
    between_per_s: float


def minute_of(peer: PeerSeries) -> PeerMinute:
    """Return the facts of a peer's first ``WINDOW_S``."""
    early = peer.step_t_s <= WINDOW_S
    t_s, step_s, samples = peer.step_t_s[early], peer.step_s[early], peer.step_samples
    readings = peer.reading_t_s <= WINDOW_S
    seen_s = peer.reading_t_s[readings]
    usual = step_s[1:] if len(t_s) > 1 else step_s  # the first step warms up
    is_long = _waited(usual)
    stall_s = float(usual[is_long].sum())
    last = float(t_s[-1])
    seen_until = float(seen_s.max()) if seen_s.size else last
    has_ended = seen_until < WINDOW_S - _MARGIN_S
    tail = min(seen_until, WINDOW_S) - last
    is_stalled = tail > 3 * float(np.quantile(usual, 0.9)) + 2 and not has_ended
    sent = peer.sent_bytes_per_s[readings][seen_s > last] if is_stalled else np.empty(0)
    active_s = max(seen_until, 1.0) if has_ended else WINDOW_S
    waited_s = stall_s + float(step_s[0]) + (tail if is_stalled else 0.0)
    busy_s = max(active_s - waited_s, 0.5 * len(t_s) * float(np.median(usual)) + 0.01)
    changes = _changes(t_s, peer.synchronised[early])
    between = np.nan
    if len(changes) > 1:
        passed = max(float(t_s[changes[-1]] - t_s[changes[0]]), 0.5)
        between = (changes[-1] - changes[0]) * samples / passed
    return PeerMinute(
        window_per_s=len(t_s) * samples / WINDOW_S,
        running_per_s=max(len(t_s) - int(is_long.sum()), 1) * samples / busy_s,
        seen_stall_s=stall_s,
        synchronisations=float(len(changes)),
        is_stalled=is_stalled,
        stalled_s=tail if is_stalled else 0.0,
        sent_bytes_per_s=float(np.mean(sent)) if sent.size else np.nan,
        between_per_s=between,
    )


def _waited(step_s: Floats) -> NDArray[np.bool_]:
    return step_s > max(_LONG * float(np.quantile(step_s, 0.75)), _LEAST_STALL_S)


def _changes(t_s: Floats, synchronised: Floats) -> list[int]:
    """Return the steps at which the count of synchronisations moved on, jitter left out."""
    kept: list[int] = []
    for step in np.flatnonzero(np.diff(synchronised) > 0) + 1:
        if not kept or t_s[step] - t_s[kept[-1]] >= _APART_S:
            kept.append(int(step))
    return kept


def together(
    minutes: Sequence[PeerMinute], *, target_batch: float, parameters_gb: float,
    link_bytes_per_s: float = np.inf, peers: int | None = None,
) -> FirstMinutes:  # fmt: skip
    """Return the minutes of peers as one row of what they showed together.

    Parameters
    ----------
    link_bytes_per_s : float
        Slowest link between two of their sites.
    peers : int, optional
        Of all, where only some were recorded: those stand for the others.
    """
    count = float(peers or len(minutes))
    share = count / len(minutes)

    def mean(values: Sequence[float]) -> float:
        known = np.asarray(values, float)
        known = known[np.isfinite(known)]
        return float(known.mean()) if known.size else np.nan

    synchronisations = mean([m.synchronisations for m in minutes])
    stall_s = mean([m.seen_stall_s for m in minutes]) / max(synchronisations, 1.0)
    return FirstMinutes(
        peers=Peers(
            target_samples=np.array([target_batch]),
            samples_per_s=np.array([share * sum(m.running_per_s for m in minutes)]),
            parameters_gb=np.array([parameters_gb]),
            peers=np.array([count]),
            link_bytes_per_s=np.array([link_bytes_per_s]),
        ),
        seen_stall_s=np.array([stall_s]),
        synchronisations=np.array([synchronisations]),
        stalled_share=np.array([mean([float(m.is_stalled) for m in minutes])]),
        stalled_s=np.array([mean([m.stalled_s for m in minutes])]),
        sent_bytes_per_s=np.array([mean([m.sent_bytes_per_s for m in minutes])]),
        between_per_s=np.array([mean([m.between_per_s for m in minutes]) * count]),
        window_per_s=np.array([share * sum(m.window_per_s for m in minutes)]),
    )


def series_of(recording: Recording, batch: float) -> PeerSeries:
    """Return a recording of one peer as its series.

    Raises RunError if it has too few steps to tell a wait from a step.
    """
    steps = np.asarray(recording.ranks[0].step_s if recording.ranks else (), float)
    ends = np.cumsum(steps)
    began = recording.startup_raw_s or recording.startup_s or 0.0
    first_s = float(steps[0]) if steps.size else 0.0
    t_s = np.array([r.t_s for r in recording.readings]) - began - first_s
    seen_s = float(t_s[-1]) if t_s.size else 0.0
    if steps.size < _LEAST_STEPS or seen_s < WINDOW_S - _MARGIN_S:
        raise RunError(
            f"{recording.run_id} shows {steps.size} steps in {max(seen_s, 0.0):.0f} s: too little "
            "to see how its peers average",
            hint="record it for longer than a minute: advisor profile --for 75s train.py",
        )
    sent = np.array([float(r.network_sent_bytes) for r in recording.readings])
    rates = np.diff(sent) / np.maximum(np.diff(t_s), 1e-9) if len(t_s) > 1 else np.empty(0)
    after = t_s[1:] >= 0
    return PeerSeries(
        step_samples=batch,
        step_t_s=ends - ends[0],
        step_s=steps,
        synchronised=np.cumsum(np.concatenate([[False], _waited(steps[1:])])).astype(float),
        reading_t_s=t_s[1:][after],
        sent_bytes_per_s=np.maximum(rates[after], 0.0),
    )
