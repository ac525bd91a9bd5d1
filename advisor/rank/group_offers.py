"""Groups of machines of unlike types that are looked at, and what is safe to leave out.

A mixed cluster is two types of machines of one provider, in one region, paid the same way; of
machines of which there is a number (the user's own, a quota) up to four types, and all of each. Of
all of them only those are evaluated that could be on the front; nothing that could be is lost:

1. In one place, a type that another equals or beats in everything that the estimate reads (same
   accelerators, no slower links, processors or network, no higher price): in any mix the better
   one takes its place.
2. Of the same machines in several places, all but the cheapest: they take equally long.
3. Machines whose bounds from below, in time and cost, are beaten by what is known
   (``rank.search``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Offers, TypeColumns
from advisor.estimate import SideCosts, StepCase
from advisor.machines import host_fits
from advisor.rank.renting import Booleans, Floats, Integers

# Most types of a cluster of which there is a number, and offers of one place that are combined so.
_MOST_TYPES: Final = 4
_MOST_OFFERS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOffers:
    """Mixed clusters as offers with counts, one row a cluster."""

    # offers, counts: rows of the offers, (n, k), by rising type, any behind the last type of a
    # cluster; and machines of each, 0 there
    offers: Integers
    counts: Integers
    # usd_per_h, once_usd: (n,); of all machines with their storage; paid whatever the time
    usd_per_h: Floats
    once_usd: Floats
    considered: int  # clusters before anything was left out

    def of(self, column: NDArray[np.generic]) -> Floats:
        """Return a column of the offers by group, nan where a row has fewer groups, (n, k)."""
        return np.where(self.counts > 0, np.asarray(column, float)[self.offers], np.nan)


def mixed_offers(
    case: StepCase, offers: Offers, side: SideCosts, types: TypeColumns, counts: tuple[int, ...],
    most: int, *, is_pruned: bool = True,
) -> MixedOffers:  # fmt: skip
    """Return the clusters of several types that may be rented together.

    ``side``: one row an offer; ``counts``: numbers of machines of a type that are looked at;
    ``is_pruned``: leave out what rules 1 and 2 allow to; the tests compare with all; True by
    default.
    """
    hourly = offers.price_usd_per_h + side.usd_per_h
    first, second, number = _pairs(case, offers, hourly, types, is_pruned=is_pruned)
    once = np.nan_to_num(np.fmax(side.egress_usd[first], side.egress_usd[second]))
    group = _same_machines(first, second, once, offers)
    many = [(n, m) for n in counts for m in counts if n + m <= most]
    rows, numbers = [np.zeros(0, np.int64)], [np.zeros((0, 2), np.int64)]
    for n, m in many:
        chosen = np.arange(first.size)
        if is_pruned:
            chosen = _cheapest(group, hourly[first] * n + hourly[second] * m)
        rows.append(chosen)
        numbers.append(np.tile([n, m], (chosen.size, 1)))
    row = np.concatenate(rows)
    found = np.stack([first[row], second[row]], axis=1), np.concatenate(numbers)
    counted = _of_counted(case, offers, types, counts, most)
    joined = [_joined(one, other) for one, other in zip(found, counted, strict=True)]
    each = np.where(joined[1] > 0, hourly[joined[0]], 0.0)
    return MixedOffers(
        offers=joined[0],
        counts=joined[1],
        usd_per_h=(each * joined[1]).sum(axis=1),
        once_usd=np.where(joined[1] > 0, np.nan_to_num(side.egress_usd)[joined[0]], 0.0).max(
            axis=1, initial=0.0
        ),
        considered=number * len(many) + len(counted[0]),
    )


def _joined(one: Integers, other: Integers) -> Integers:
    """Return rows below rows; those with fewer groups are filled up with 0."""
    wide = max(one.shape[1], other.shape[1])
    return np.concatenate([np.pad(x, ((0, 0), (0, wide - x.shape[1]))) for x in (one, other)])


def _of_counted(
    case: StepCase, offers: Offers, types: TypeColumns, counts: tuple[int, ...], most: int
) -> tuple[Integers, Integers]:
    """Return clusters of offers of which there is a number: more types, and all machines."""
    rows = np.flatnonzero(_can_join(case, offers, types) & np.isfinite(offers.max_instances))
    place = _places(offers, types)[rows]
    found: list[tuple[list[int], list[int]]] = []
    for where in np.unique(place):
        there = rows[place == where]
        if there.size > _MOST_OFFERS:
            continue
        there = there[np.argsort(offers.type_index[there], kind="stable")]
        for size in range(2, min(_MOST_TYPES, there.size) + 1):
            for some in combinations(there.tolist(), size):
                able = [sorted({*counts, int(offers.max_instances[o])}) for o in some]
                for numbers in product(*able):
                    # Two types at these counts are among the pairs.
                    is_new = size > 2 or not set(numbers) <= set(counts)
                    if is_new and sum(numbers) <= most:
                        found.append((list(some), list(numbers)))
    offer = np.zeros((len(found), _MOST_TYPES if found else 2), np.int64)
    number = np.zeros_like(offer)
    for i, (chosen, machines) in enumerate(found):
        offer[i, : len(chosen)], number[i, : len(chosen)] = chosen, machines
    return offer, number


def _pairs(
    case: StepCase, offers: Offers, hourly: Floats, types: TypeColumns, *, is_pruned: bool
) -> tuple[Integers, Integers, int]:
    """Return pairs of offers of one place, and how many there are without rule 1."""
    rows = np.flatnonzero(_can_join(case, offers, types))
    place = _places(offers, types)[rows]
    first, second = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    number = 0
    for where in np.unique(place):
        there = rows[place == where]
        number += there.size * (there.size - 1) // 2
        there = there[np.argsort(offers.type_index[there], kind="stable")]
        i, j = np.triu_indices(there.size, k=1)
        if is_pruned:
            keeps = _undominated(_beats(case, there, hourly, offers), i, j)
            i, j = i[keeps], j[keeps]
        first.append(there[i])
        second.append(there[j])
    return np.concatenate(first), np.concatenate(second), number


def _can_join(case: StepCase, offers: Offers, types: TypeColumns) -> Booleans:
    """Whole accelerators of a known time, on machines of a known network."""
    fleet, t = case.fleet, offers.type_index
    return np.asarray(
        fleet.is_accelerated[t]
        & fleet.is_supported[t]
        & (fleet.device[t] >= 0)
        & (types.accelerator_count[t] >= 1)
        & ~fleet.is_network_assumed[t]
        & host_fits(case.job, case.work, fleet, t)
    )


def _places(offers: Offers, types: TypeColumns) -> Integers:
    """Return a number for every place: provider, region and way to pay."""
    return _alike(types.provider[offers.type_index], offers.region_index, offers.pricing)


def _alike(*columns: NDArray[np.generic]) -> Integers:
    """Return a number for rows that have the same in all columns, in the order of these."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        distinct, code = np.unique(np.asarray(values), return_inverse=True)
        # Kept small, so that the next product does not overflow.
        codes = np.unique(codes * max(distinct.size, 1) + code, return_inverse=True)[1]
    return codes


def _undominated(beats: Booleans, i: Integers, j: Integers) -> Booleans:
    """Whether nothing can take the place of either type of a pair (rule 1).

    The other type of the pair cannot: the two together may be more machines than any cluster of
    equal ones that is looked at.
    """
    times = beats.sum(axis=0)
    alone = times[i] - beats[j, i], times[j] - beats[i, j]
    return np.asarray((alone[0] == 0) & (alone[1] == 0))


def _beats(case: StepCase, rows: Integers, hourly: Floats, offers: Offers) -> Booleans:
    """Whether an offer of a place (row) has the devices of another (column) and nothing worse."""
    fleet, t = case.fleet, offers.type_index[rows]
    # Larger is better in every column; what nobody knows is better than nothing and no other.
    quality = [
        -hourly[rows],
        fleet.network_bytes_per_s[t],
        -fleet.network_latency_s[t],
        fleet.rdma_share[t],
        fleet.intra_bytes_per_s[t],
        -fleet.intra_latency_s[t],
        offers.max_instances[rows],
    ]
    if case.job.feed.cpu_s_per_sample is not None:
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


def _same_machines(first: Integers, second: Integers, once: Floats, offers: Offers) -> Integers:
    """Return a number for what differs in price only: types, way to pay, removals, quotas."""
    band = np.nan_to_num(offers.spot_interruption_band, nan=5.0)
    return _alike(
        offers.type_index[first], offers.type_index[second], offers.pricing[first],
        band[first], band[second], once, offers.max_instances[first],
        offers.max_instances[second],
    )  # fmt: skip


def _cheapest(group: Integers, price: Floats) -> Integers:
    """Return the row of the least price of every group (rule 2); of equals the first."""
    order = np.lexsort((price, group))
    starts = np.concatenate([[True], np.diff(group[order]) > 0]) if order.size else order
    return np.asarray(order[starts])
