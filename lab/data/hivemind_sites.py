"""Sites of the peers of Hivemind's recordings, and the bandwidth of the links between them.

Bandwidths are medians of the recordings' own iperf logs, one stream (cirquit/hivemind-multi-cloud,
artifacts/networking/logs, experiment sets 1 and 3, April 2023). Regions of Google's T4s are in the
recordings' labels. The machine of eight V100s stood in Europe, on premises: three series of its
logs, of 13 April at 13:13, 15:43 and 18:53, are with T4s in the USA, Lambda's A10s (USA) and T4s
in Europe; the three series of runs with it are numbered in that order (those with A10s, which
stand in the middle, say so themselves).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

# Two sites -> Mbit/s from one to the other.
_LINKS: Final = {
    frozenset(pair): rate
    for pair, rate in {
        ("US", "EU"): 210.0, ("US", "ASIA"): 133.0, ("US", "AUS"): 117.0, ("EU", "ASIA"): 76.2,
        ("EU", "AUS"): 69.2, ("ASIA", "AUS"): 162.0,
        ("premises", "US"): 76.8, ("premises", "Lambda"): 76.6, ("premises", "EU"): 657.0,
    }.items()
}  # fmt: skip
_PREMISES: Final = "8xV100"
_FIRST_WITH_A10, _FIRST_IN_EUROPE = 141, 155  # numbers of the runs with it


def sites_of(exp: str, node_types: Sequence[str], label: str) -> tuple[str, ...]:
    """Return the sites of a run's peers; one where nothing says that there are several.

    ``exp``: ``hivemind-125``; ``label``: ``US + EU T4``; empty where a run has none.
    """
    told = exp.rpartition("-")[2]
    if _PREMISES in node_types and len(node_types) > 1 and told.isdecimal():
        number = int(told)
        cloud = "US" if number < _FIRST_WITH_A10 else "EU"
        is_lambda = _FIRST_WITH_A10 <= number < _FIRST_IN_EUROPE
        return ("premises", "Lambda" if is_lambda else cloud)
    regions = label.rpartition(" ")[0].split(" + ") if "+" in label else []
    return tuple(regions) or ("one",)


def slowest_link_gbit_per_s(sites: Sequence[str]) -> float | None:
    """Return the slowest link between two of the sites; None at a single one.

    Raises KeyError if a link was not measured.
    """
    rates = [_LINKS[frozenset(pair)] for pair in itertools.combinations(sites, 2)]
    return min(rates) / 1e3 if rates else None
