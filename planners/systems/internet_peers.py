r"""Rate of peers that gather a batch together and then average, over slow links between sites.

Volunteers and machines of several clouds train so (Hivemind): every peer adds its samples to a
common target batch; when it is reached all stop, average, and go on.

==================  =====================================================================
here                meaning
==================  =====================================================================
B                   samples that all peers together gather before they average
R                   samples/s of all peers together while none waits [1/s]
n, P                peers, parameters [1e9]
w                   bandwidth of the slowest link between two sites; infinite at one site [bytes/s]
eta                 share of R that is left while peers look for each other
S                   a synchronisation: everybody waits [s]
F, p                least time between two synchronisations, and how sharply it rules [s]
c_0, c_1, a         fixed part of S [s], part for each 1e9 parameters of a ring [s], its growth
                    with doublings of the peers beyond two
k                   how long the pairs across the slowest link take, over bytes through bandwidth
v, beta             what a peer that waits is seen to send [bytes/s], and what it has to send for
                    each 1e9 parameters of a ring [1e9 bytes]
==================  =====================================================================

.. math::
    G &= 2 P (n - 1) / n, \qquad
    S = (c_0 + c_1 G)\, (n / 2)^a + k \cdot 2 \cdot 10^9 \cdot (2 P / n) / w \\
    E &= \left( \left( \frac{B}{\eta R} + S \right)^p + F^p \right)^{1/p}, \qquad rate = B / E

Averaging hands one n-th of the parameters, in two bytes each, from every peer to every other and
back, all pairs at once: over a link between sites, each pair has a stream of its own. That is the
term with w (``alpha-beta`` without alpha, whose seconds are in c_0); the form of the rest was
found on Hivemind's published recordings (M. Ryabinin et al., Moshpit SGD, NeurIPS 2021, has the
algorithm; A. Erben et al., VLDB 17(6), 2024, the recordings).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import select

Array = NDArray[np.float64]

_BYTES_PER_GB_PARAMETERS = 2e9  # gradients are averaged in 16 bits
_LEAST_SENT_BYTES_PER_S = 0.5e6  # below it a peer that waits is not seen to send


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerParameters:
    """Constants of the equations above.

    ``efficiency`` is eta, ``fixed_s`` c_0, ``per_gb_s`` c_1, ``floor_s`` F, ``sharpness`` p,
    ``growth`` a, ``transfer`` k, ``begun_gb`` beta.
    """

    efficiency: float
    fixed_s: float
    per_gb_s: float
    floor_s: float
    sharpness: float
    growth: float
    transfer: float
    begun_gb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Groups of peers that train one model together; shape (n,) each."""

    target_samples: Array  # samples gathered between two synchronisations
    samples_per_s: Array  # rate of all peers together while none waits [1/s]
    parameters_gb: Array
    peers: Array
    # slowest link between two of their sites; infinite where they are at one [bytes/s]
    link_bytes_per_s: Array

    def take(self, rows: NDArray[np.intp]) -> Peers:
        """Return the chosen rows."""
        return select(self, rows)

    @property
    def ring_gb(self) -> Array:
        """What each sends in a synchronisation [1e9 parameters]: G."""
        return np.asarray(2.0 * self.parameters_gb * (self.peers - 1) / self.peers, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMinutes:
    """What the first minute of running peers showed; shape (n,) each."""

    peers: Peers  # with the rate at which they were seen to train while none waited
    seen_stall_s: Array  # of one synchronisation that was seen from begin to end [s]
    synchronisations: Array
    # stalled_share, stalled_s: peers that wait at the end of the minute, and since when [s]
    stalled_share: Array
    stalled_s: Array
    sent_bytes_per_s: Array  # what those peers send; nan where none waits [bytes/s]
    # samples/s between the first and the last synchronisation; nan with fewer than two [1/s]
    between_per_s: Array
    window_per_s: Array  # samples/s of the whole minute [1/s]

    def take(self, rows: NDArray[np.intp]) -> FirstMinutes:
        """Return the chosen rows."""
        return select(self, rows)


def stall_s(peers: Peers, constants: PeerParameters) -> Array:
    """Return how long a synchronisation takes that was not seen, shape (n,) [s]."""
    ring_s = constants.fixed_s + constants.per_gb_s * peers.ring_gb
    doublings = np.log2(np.maximum(peers.peers, 2.0) / 2.0)
    pair_bytes = _BYTES_PER_GB_PARAMETERS * 2.0 * peers.parameters_gb / peers.peers
    between_s = constants.transfer * pair_bytes / peers.link_bytes_per_s
    return np.asarray(ring_s * np.exp(constants.growth * doublings) + between_s, float)


def rate_of_parts(peers: Peers, constants: PeerParameters) -> Array:
    """Return the samples/s of peers of which each one's own rate is known, shape (n,)."""
    return peers.target_samples / _floored_s(_epoch_s(peers, stall_s(peers, constants), constants),
                                             constants)  # fmt: skip


def rate_after_a_minute(seen: FirstMinutes, constants: PeerParameters) -> Array:
    """Return the samples/s of running peers by their first minute, shape (n,).

    What was seen counts: the rate between two synchronisations, else one synchronisation's
    length; one that has begun takes what is left to send at the rate that is seen, and at least
    what it has taken. Where nothing can be said but of the minute itself (a single peer), that
    rate goes on.
    """
    peers = seen.peers
    unseen = stall_s(peers, constants)
    sent = np.maximum(seen.sent_bytes_per_s, _LEAST_SENT_BYTES_PER_S)
    begun = 1e9 * constants.begun_gb * peers.ring_gb / sent
    begun = np.maximum(np.where(np.isfinite(begun), begun, unseen), seen.stalled_s)
    to_come = (1.0 - seen.stalled_share) * unseen + seen.stalled_share * begun
    is_seen = seen.synchronisations >= 1
    epoch_s = _epoch_s(peers, np.where(is_seen, seen.seen_stall_s, to_come), constants)
    epoch_s = np.where(is_seen, epoch_s, _floored_s(epoch_s, constants))
    modelled = np.where(
        np.isfinite(seen.between_per_s), seen.between_per_s, peers.target_samples / epoch_s
    )
    return np.where(np.isfinite(modelled), modelled, seen.window_per_s)


def _epoch_s(peers: Peers, stall: Array, constants: PeerParameters) -> Array:
    alone_s = peers.target_samples / (constants.efficiency * peers.samples_per_s)
    return np.asarray(alone_s + stall, float)


def _floored_s(epoch_s: Array, constants: PeerParameters) -> Array:
    p, floor = constants.sharpness, np.log(constants.floor_s)
    with np.errstate(invalid="ignore"):  # a peer alone gathers for nobody: nan
        return np.asarray(np.exp(np.logaddexp(p * np.log(epoch_s), p * floor) / p), float)
