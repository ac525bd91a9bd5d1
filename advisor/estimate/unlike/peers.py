"""Speed of peers that gather a batch together: by each one's rate, or their first minute.

The one function behind ``advisor simulate peers``, Python and the protocols ``cluster`` and
``series``; the constants are fitted by ``advisor train peers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import Estimate, Recorded, fitted
from advisor.collectors.format import Recording
from advisor.errors import RunError, UsageError
from advisor.planners.systems import (
    FirstMinutes,
    PeerParameters,
    Peers,
    rate_after_a_minute,
    rate_of_parts,
)
from advisor.quantities import QUANTILES

Array = NDArray[np.float64]
NAME: Final = "peers"
_COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRate:
    """Constants, and how wrong they are on models that were left out of their fit."""

    constants: PeerParameters
    # one of ``KINDS`` -> coverage -> half the interval of ln(rate)
    half_widths: Mapping[str, Mapping[str, float]]

    def half_width(self, peers: Peers, coverage: float) -> Array:
        """Return half the interval of ln(rate), shape (n,)."""
        far, near = (self.half_widths[KINDS[is_far]][str(coverage)] for is_far in (True, False))
        return np.where(np.isfinite(peers.link_bytes_per_s), far, near)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """What answers: ``parts`` by each peer's own rate, ``minute`` by running peers' first one."""

    parts: FittedRate
    minute: FittedRate

    def rates(self, asked: Peers | FirstMinutes, coverage: float = _COVERAGE) -> Array:
        """Return low, value and high of the samples/s of each row, shape (n, 3).

        Raises UsageError if there are no intervals of such a coverage.
        """
        if coverage not in QUANTILES:
            raise UsageError(
                f"a coverage of {coverage} is not available",
                hint=f"one of: {', '.join(str(one) for one in QUANTILES)}",
            )
        if isinstance(asked, Peers):
            model, peers = self.parts, asked
            rate = rate_of_parts(asked, model.constants)
        else:
            model, peers = self.minute, asked.peers
            rate = rate_after_a_minute(asked, model.constants)
        spread = np.exp(model.half_width(peers, coverage))
        return np.column_stack([rate / spread, rate, rate * spread])

    @classmethod
    def load(cls, folder: Path | None = None) -> PeerModel:
        """Read the constants; ``folder`` takes the place of the packaged one."""
        folder = folder or data.root("trained_models") / NAME
        return fitted(cls, folder / "parameters.json", train=NAME)


KINDS: Final = {True: "several sites", False: "one site"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """Equal peers at one site."""

    count: int
    samples_per_s: float  # of one of them alone [1/s]
    site: str = ""

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 < self.samples_per_s < np.inf:
            raise UsageError(
                f"{self.count} peers of {self.samples_per_s} samples/s are out of range",
                hint="give counts of 1 or more and positive rates",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer(Recorded):
    """What peers reach together: the record of ``advisor simulate peers``."""

    schema_version: int = 1
    known: str  # what was known of them
    peers: int
    target_batch: float
    parameters: float
    slowest_link_gbit_per_s: float | None  # None for peers at one site
    samples_per_s: Estimate
    sum_of_peers_per_s: float  # were nothing ever averaged [1/s]
    share_of_the_sum: float
    training_time_h: Estimate | None  # None where the length of the job was not given


def peers_answer(asked: Peers | FirstMinutes, *, samples: float | None = None) -> PeerAnswer:
    """Return what peers reach together; ``asked`` has one row.

    Raises UsageError if a quantity makes no sense; ModelError if the model cannot be read.

    ``asked``: each peer's own rate, or what was seen of them together.
    """
    is_minute = isinstance(asked, FirstMinutes)
    peers = asked.peers if isinstance(asked, FirstMinutes) else asked
    positive = [peers.target_samples, peers.samples_per_s, peers.parameters_gb]
    if not all((column > 0).all() for column in positive) or (samples or 1.0) <= 0:
        raise UsageError(
            "the target batch, the rates, the parameters and the samples must be positive",
            hint="e.g. --target-batch 32768 --parameters 198M --peer 4x85",
        )
    low, value, high = PeerModel.load().rates(asked)[0].tolist()
    rate = Estimate(value=value, low=low, high=high, coverage=_COVERAGE)
    hours = None
    if samples is not None:
        hours = Estimate(
            value=samples / value / 3600.0, low=samples / high / 3600.0,
            high=samples / low / 3600.0, coverage=_COVERAGE,
        )  # fmt: skip
    link, alone = float(peers.link_bytes_per_s[0]), float(peers.samples_per_s[0])
    return PeerAnswer(
        known="the first minute" if is_minute else "each peer alone", peers=int(peers.peers[0]),
        target_batch=float(peers.target_samples[0]),
        parameters=1e9 * float(peers.parameters_gb[0]),
        slowest_link_gbit_per_s=link * 8e-9 if np.isfinite(link) else None, samples_per_s=rate,
        sum_of_peers_per_s=alone, share_of_the_sum=rate.value / alone, training_time_h=hours,
    )  # fmt: skip


# Rates of equal machines, each measured alone, differ by less.
_ALIKE: Final = 1.25


def peers_of(
    groups: Sequence[PeerGroup], *, target_batch: float, parameters: float,
    links: Mapping[frozenset[str], float],
) -> Peers:  # fmt: skip
    """Return groups of peers as the one row that is asked about.

    Raises UsageError if there are fewer than two peers, a link between two of their sites is not
    given, or peers of unlike kinds have no site: such machines are seldom at one (of Hivemind's
    runs none), and a link that nobody named would count as none.

    ``links``: [bytes/s].
    """
    count = sum(group.count for group in groups)
    if count < 2:
        raise UsageError(
            "a single peer has no other to average with", hint="name all peers: --peer 4x85@us"
        )
    nowhere = [group.samples_per_s for group in groups if not group.site]
    if nowhere and max(nowhere) > _ALIKE * min(nowhere):
        raise UsageError(
            "peers of unlike kinds without a site: the link between them is not known",
            hint="--peer 4x85@us --peer 1x300@here --link us,here=210Mbps; the same name for "
            "all where one switch joins them",
        )
    sites = sorted({group.site for group in groups})
    slowest = np.inf
    for place, one in enumerate(sites):
        for other in sites[place + 1 :]:
            if frozenset((one, other)) not in links:
                raise UsageError(
                    f"the link between the sites {one or '(no name)'} and {other} is not given",
                    hint=f"measure it (iperf) and say --link {one or 'a'},{other}=210Mbps",
                )
            slowest = min(slowest, links[frozenset((one, other))])
    return Peers(
        target_samples=np.array([float(target_batch)]),
        samples_per_s=np.array([sum(g.count * g.samples_per_s for g in groups)]),
        parameters_gb=np.array([parameters / 1e9]),
        peers=np.array([float(count)]),
        link_bytes_per_s=np.array([slowest]),
    )


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
    """Return the facts of a peer's first ``WINDOW_S``.

    A peer is a recording of ``advisor profile`` made while the others train too, or a node of
    Hivemind's published recordings. Steps that take much longer than the others waited for a
    synchronisation; after the last step of a minute a peer may be waiting for one that has begun.
    """
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
        seen_stall_s=stall_s, synchronisations=float(len(changes)), is_stalled=is_stalled,
        stalled_s=tail if is_stalled else 0.0,
        sent_bytes_per_s=float(np.mean(sent)) if sent.size else np.nan, between_per_s=between,
    )  # fmt: skip


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

    ``link_bytes_per_s``: slowest link between two of their sites; ``peers``: of all, where only
    some were recorded: those stand for the others.
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
        step_samples=batch, step_t_s=ends - ends[0], step_s=steps,
        synchronised=np.cumsum(np.concatenate([[False], _waited(steps[1:])])).astype(float),
        reading_t_s=t_s[1:][after], sent_bytes_per_s=np.maximum(rates[after], 0.0),
    )  # fmt: skip
