"""Which pairs of offers are looked at for mixed clusters, and what is safe to leave out.

A mixed cluster is two types of machines of one provider, in one region, paid the same way. Of all
of them only those are evaluated that could be on the front; nothing that could be is lost:

1. In one place, a type that another equals or beats in everything that the estimate reads (same
   accelerators, no slower links, processors or network, no higher price): in any mix the better
   one takes its place.
2. Of the same machines in several places, all but the cheapest: they take equally long.
3. Machines whose bounds from below, in time and cost, are beaten by a cluster of equal machines.
   A bound lets every device compute all the time at the best rate that it can have there, and
   nothing is communicated, loaded or saved.

| here     | meaning                                                                             |
|----------|-------------------------------------------------------------------------------------|
| ``B``    | samples of a step                                                                   |
| ``W_k``  | devices of a type                                                                   |
| ``c_k``  | ceil(B / W_k): the largest micro-batch on a device. Uneven batches give a device    |
|          | fewer than B / W_k, and a pipeline gives every device of a stage a micro-batch      |

    step >= B / sum_k W_k / min_u t_k(u) / u,   over micro-batches u of at most c_k

The tests compare with evaluating all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns, TypeColumns
from advisor.predict.data_costs import SideCosts
from advisor.ways.fitting import host_fits
from advisor.ways.pairs import Pair, PairCase

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOffers:
    """Mixed clusters as offers with counts, one row a cluster.

    Attributes
    ----------
    offers, counts : pairs of integer arrays of shape (n,)
        Rows of the offers, the one of the smaller type first; machines of each.
    usd_per_h, once_usd : arrays of shape (n,)
        Of all machines with their storage; paid whatever the time.
    considered : int
        Clusters before anything was left out.
    """

    offers: Pair
    counts: Pair
    usd_per_h: Floats
    once_usd: Floats
    considered: int

    def select(self, rows: Integers | Booleans) -> MixedOffers:
        """Return some rows."""
        return MixedOffers(
            offers=(self.offers[0][rows], self.offers[1][rows]),
            counts=(self.counts[0][rows], self.counts[1][rows]),
            usd_per_h=self.usd_per_h[rows],
            once_usd=self.once_usd[rows],
            considered=self.considered,
        )


def mixed_offers(
    pairs: PairCase,
    offers: OfferColumns,
    side: SideCosts,
    types: TypeColumns,
    counts: Pair,
    *,
    is_pruned: bool = True,
) -> MixedOffers:
    """Return the clusters of two types that may be rented together.

    Parameters
    ----------
    pairs : PairCase
    offers : OfferColumns
    side : SideCosts
        One row an offer.
    types : TypeColumns
        Of the catalogue.
    counts : pair of integer arrays
        Numbers of machines of both types that are looked at.
    is_pruned : bool, default True
        Leave out what rules 1 and 2 allow to; the tests compare with all.
    """
    hourly = offers.price_usd_per_h + np.nan_to_num(side.storage_usd_per_h)
    first, second, number = _pairs(pairs, offers, hourly, types, is_pruned=is_pruned)
    once = np.nan_to_num(np.fmax(side.egress_usd[first], side.egress_usd[second]))
    group = _same_machines(first, second, once, offers)
    rows, columns = [], []
    for place, (n, m) in enumerate(zip(*counts, strict=True)):
        chosen = np.arange(first.size)
        if is_pruned:
            chosen = _cheapest(group, hourly[first] * n + hourly[second] * m)
        rows.append(chosen)
        columns.append(np.full(chosen.size, place))
    row = np.concatenate([np.zeros(0, np.int64), *rows])
    column = np.concatenate([np.zeros(0, np.int64), *columns])
    a, b = first[row], second[row]
    n, m = counts[0][column], counts[1][column]
    return MixedOffers(
        offers=(a, b),
        counts=(n, m),
        usd_per_h=hourly[a] * n + hourly[b] * m,
        once_usd=once[row],
        considered=number * counts[0].size,
    )


def _pairs(
    pairs: PairCase, offers: OfferColumns, hourly: Floats, types: TypeColumns, *, is_pruned: bool
) -> tuple[Integers, Integers, int]:
    """Return pairs of offers of one place, and how many there are without rule 1."""
    rows = np.flatnonzero(_can_join(pairs, offers, types))
    place = _places(offers, types)[rows]
    first, second = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    number = 0
    for where in np.unique(place):
        there = rows[place == where]
        number += there.size * (there.size - 1) // 2
        there = there[np.argsort(offers.type_index[there], kind="stable")]
        i, j = np.triu_indices(there.size, k=1)
        if is_pruned:
            keeps = _undominated(_beats(pairs, there, hourly, offers), i, j)
            i, j = i[keeps], j[keeps]
        first.append(there[i])
        second.append(there[j])
    return np.concatenate(first), np.concatenate(second), number


def _can_join(pairs: PairCase, offers: OfferColumns, types: TypeColumns) -> Booleans:
    """Whole accelerators of a known time, on machines of a known network."""
    fleet, t = pairs.case.fleet, offers.type_index
    return np.asarray(
        fleet.is_accelerated[t]
        & fleet.is_supported[t]
        & (fleet.device[t] >= 0)
        & (types.accelerator_count[t] >= 1)
        & ~fleet.is_network_assumed[t]
    )


def _places(offers: OfferColumns, types: TypeColumns) -> Integers:
    """Return a number for every place: provider, region and way to pay."""
    names = [types.provider[offers.type_index], offers.region, offers.pricing]
    codes = [np.unique(np.asarray(x), return_inverse=True)[1] for x in names]
    if not len(offers):
        return np.zeros(0, dtype=np.int64)
    joined = (codes[0] * (codes[1].max() + 1) + codes[1]) * (codes[2].max() + 1) + codes[2]
    return np.asarray(joined, dtype=np.int64)


def _undominated(beats: Booleans, i: Integers, j: Integers) -> Booleans:
    """Whether nothing can take the place of either type of a pair (rule 1).

    The other type of the pair cannot: the two together may be more machines than any cluster of
    equal ones that is looked at.
    """
    times = beats.sum(axis=0)
    alone = times[i] - beats[j, i], times[j] - beats[i, j]
    return np.asarray((alone[0] == 0) & (alone[1] == 0))


def _beats(pairs: PairCase, rows: Integers, hourly: Floats, offers: OfferColumns) -> Booleans:
    """Whether an offer of a place (row) has the devices of another (column) and nothing worse."""
    fleet, t = pairs.case.fleet, offers.type_index[rows]
    is_gpu = np.zeros(rows.size, dtype=bool)
    # Larger is better in every column; what nobody knows is better than nothing and no other.
    quality = [
        -hourly[rows],
        fleet.network_bytes_per_s[t],
        -fleet.network_latency_s[t],
        fleet.is_rdma[t].astype(float),
        fleet.intra_bytes_per_s[t],
        -fleet.intra_latency_s[t],
        host_fits(pairs.case.job, pairs.case.work, fleet, t, is_gpu).astype(float),
        offers.max_instances[rows],
    ]
    if pairs.case.job.feed.cpu_s_per_sample is not None:
        quality.append(fleet.vcpus[t])
    table = np.stack(quality)
    speed = np.nan_to_num(fleet.core_speed[t], nan=-1.0)
    same = (fleet.device[t][:, None] == fleet.device[t][None, :]) & (
        fleet.per_node[t][:, None] == fleet.per_node[t][None, :]
    )
    same &= (speed[:, None] >= 0) == (speed[None, :] >= 0)
    # Replayed removals are samples: rarer ones are not better in every last digit.
    band = np.nan_to_num(offers.spot_interruption_band[rows], nan=5.0)
    same &= band[:, None] == band[None, :]
    better = same & (speed[:, None] >= speed[None, :])
    better &= (table[:, :, None] >= table[:, None, :]).all(axis=0)
    # Of equals the first stays.
    place = np.arange(rows.size)
    return np.asarray(better & (~better.T | (place[:, None] < place[None, :])))


def _same_machines(
    first: Integers, second: Integers, once: Floats, offers: OfferColumns
) -> Integers:
    """Return a number for what differs in price only: types, way to pay, removals, quotas."""
    band = np.nan_to_num(offers.spot_interruption_band, nan=5.0)
    codes = np.zeros(first.size, dtype=np.int64)
    for values in (
        offers.type_index[first], offers.type_index[second], offers.pricing[first],
        band[first], band[second], once, offers.max_instances[first],
        offers.max_instances[second],
    ):  # fmt: skip
        distinct, code = np.unique(values, return_inverse=True)
        codes = codes * distinct.size + code
        # Kept small, so that the next product does not overflow.
        codes = np.unique(codes, return_inverse=True)[1]
    return np.asarray(codes, dtype=np.int64)


def _cheapest(group: Integers, price: Floats) -> Integers:
    """Return the row of the least price of every group (rule 2); of equals the first."""
    order = np.lexsort((price, group))
    starts = np.concatenate([[True], np.diff(group[order]) > 0]) if order.size else order
    return np.asarray(order[starts])


def bounds_s(pairs: PairCase, types: Pair, counts: Pair) -> Floats:
    """Return a step's bound from below (rule 3) [s]."""
    batch = pairs.case.job.global_batch
    rate = np.zeros(types[0].size)
    for kind, workers in zip(pairs.kinds(types), pairs.devices(types, counts), strict=True):
        rate += workers / least_per_sample_s(pairs, kind, -(-batch // workers))
    return np.asarray(batch / rate)


def least_per_sample_s(pairs: PairCase, device: Integers, largest: Integers) -> Floats:
    """Return a device's least time of a sample at any micro-batch up to the largest [s].

    Between powers of two the times are straight lines: the least lies at one of them or at the
    largest itself.
    """
    table = pairs.times.whole.time_s
    by_power = np.minimum.accumulate(table / np.exp2(np.arange(table.shape[1])), axis=1)
    below = np.clip(np.frexp(np.asarray(largest, float))[1] - 1, 0, table.shape[1] - 1)
    return np.asarray(
        np.minimum(by_power[device, below], pairs.times.whole.at(device, largest) / largest)
    )


def count_pairs(counts: tuple[int, ...], most: int) -> Pair:
    """Return numbers of machines of both types, at most so many together.

    >>> [x.tolist() for x in count_pairs((1, 2, 4), 4)]
    [[1, 1, 2, 2], [1, 2, 1, 2]]
    """
    found = [(n, m) for n in counts for m in counts if n + m <= most]
    return np.array([n for n, _ in found], np.int64), np.array([m for _, m in found], np.int64)
