"""What was asked for that no offer has, and the nearest that one has.

An accelerator that no provider rents has others near it: those of its maker, by rate, memory and
bandwidth, where they differ by less than twice. A limit that leaves no offer (a region, a price, a
provider, a number of accelerators) has the nearest value with which there are some, all other
limits kept.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from advisor.ask import Constraints
from advisor.catalogue import Accelerator, Catalogue, GpuFilter, OfferFilter, Offers, gpus_text
from advisor.estimate import offer_of

_NEAREST: Final = 3
# Mean squared distance of its figures from which a card is no stand-in: a factor of two.
_FAR: Final = math.log(2.0) ** 2
# How alike two names are spelt that may have been mistaken, from 0 to 1 (``difflib``).
_SPELT_ALIKE: Final = 0.7
# What makes two accelerators alike for training: how fast they multiply, what fits, how fast it
# is read.
_ALIKE: Final = ("bf16_flop_per_s", "fp16_flop_per_s", "memory_bytes", "memory_bytes_per_s")


def unoffered(request: Constraints, catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Return what no offer has, each with the nearest that there is.

    Keys are accelerators as they were typed, or a flag with its value; the nearest are then
    values of that flag.
    """
    found = _cards(request, catalogue) or dict(_limits(request, catalogue))
    flags = _flags(request.offer_filter())
    # Limits of which several have to go have no nearest.
    return found or ({" ".join(flags.values()): ()} if flags else {})


def _flags(asked: OfferFilter) -> dict[str, str]:
    """Return the limits on what is offered, by the field of the filter, as they are typed."""
    said = {
        "regions": f"--region {','.join(asked.regions)}",
        "max_price_usd_per_h": f"--max-price {asked.max_price_usd_per_h:g}",
        "providers": f"--cloud {','.join(sorted(asked.providers))}",
        "gpus": f"--gpus {gpus_text(asked.gpus)}" if asked.gpus else "",
        "is_dated": "--dated",
    }
    nothing = OfferFilter()
    return {name: flag for name, flag in said.items()
            if getattr(asked, name) != getattr(nothing, name)}  # fmt: skip


def _cards(request: Constraints, catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Return the accelerators that no provider has, each with the nearest that one has."""
    names = () if request.gpus is None else request.gpus.names
    every = catalogue.select(OfferFilter(pricing=("on-demand", "spot")))
    there = set(np.unique(catalogue.types.accelerator[every.type_index]).tolist()) - {""}
    known = {name: one for name in there if (one := catalogue.accelerators.get(name)) is not None}
    found = {}
    for name in names:
        meant = catalogue.matching_gpus(name)
        asked = [catalogue.accelerators[one] for one in meant if one in catalogue.accelerators]
        if there & set(meant) or not asked:
            continue
        far = {other: _unlike(asked[0], one) for other, one in known.items()}
        # Another maker's card stands in only where this one's are not rented at all.
        is_others = all(others for others, _ in far.values())
        near = [
            one for one, (others, apart) in far.items() if others == is_others and apart <= _FAR
        ]
        found[name] = tuple(sorted(near, key=far.__getitem__)[:_NEAREST])
    return found


def _unlike(one: Accelerator, other: Accelerator) -> tuple[bool, float]:
    """Return whether the maker is another, and how far the figures are apart.

    A mean of squared logarithms over what is known of ``one``; infinite where one of these is
    not known of the other.
    """
    asked = [name for name in _ALIKE if _figure(one, name)]
    is_others = one.vendor != other.vendor
    if not asked or not all(_figure(other, name) for name in asked):
        return is_others, math.inf
    logs = [math.log(_figure(one, name) / _figure(other, name)) ** 2 for name in asked]
    return is_others, sum(logs) / len(logs)


def _figure(one: Accelerator, name: str) -> float:
    """Return a figure of one device; 0 where nobody states it."""
    return getattr(one if name == "memory_bytes" else one.device, name, None) or 0.0


def _limits(request: Constraints, catalogue: Catalogue) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every limit without which there are offers, and the nearest with which there are."""
    asked, nothing = request.offer_filter(), OfferFilter()
    for name, flag in _flags(asked).items():
        without: Any = getattr(nothing, name)
        if name == "gpus" and asked.gpus is not None:
            if asked.gpus.others or not asked.gpus.names:
                continue
            without = GpuFilter(names=asked.gpus.names)
        found = catalogue.select(replace(asked, **{name: without}))
        if len(found):
            yield flag, _nearest(name, asked, found, catalogue)


def _nearest(
    name: str, asked: OfferFilter, found: Offers, catalogue: Catalogue
) -> tuple[str, ...]:
    """Return the values of a limit that are nearest to the one asked for, of these offers."""
    types = catalogue.types
    if name == "regions":
        return _regions(asked.regions[0], found)
    if name == "max_price_usd_per_h":
        return (_cheapest(catalogue, found),)
    if name == "providers":
        return tuple(dict.fromkeys(types.provider[found.type_index].tolist()))[:_NEAREST]
    if name == "gpus" and asked.gpus is not None:
        return _expressions(asked.gpus, found, catalogue)
    return ()


def _regions(asked: str, found: Offers) -> tuple[str, ...]:
    """Return the regions that are spelt like the one that was asked for, or hold its name."""
    names = {str(name).casefold(): str(name) for name in found.region[::-1]}
    plain = asked.casefold().strip("*")
    near = [one for one in names if len(plain) > 2 and plain in one]
    near = near or difflib.get_close_matches(plain, names, n=_NEAREST, cutoff=_SPELT_ALIKE)
    return tuple(names[one] for one in near[:_NEAREST])


def _cheapest(catalogue: Catalogue, found: Offers) -> str:
    """Return the least price that there is, as no less than it, and what costs it."""
    offer = offer_of(catalogue, found, 0)
    least = math.ceil(1e4 * offer.price_usd_per_h) / 1e4
    return f"{least:.10g} ({offer.instance_type}, {offer.provider} {offer.region})"


def _expressions(asked: GpuFilter, found: Offers, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the expressions that are nearest to the one asked for: by memory, and by number."""
    types, at = catalogue.types, np.unique(found.type_index)
    known = zip(types.accelerator[at].tolist(), types.accelerator_count[at].tolist(), strict=True)
    far: dict[str, float] = {}
    for name, count in known:
        size = catalogue.accelerators[name].memory_gb
        text, apart = ",".join(asked.names), 0.0
        for value, low, high, unit in (
            (size, asked.min_memory_gb, asked.max_memory_gb, "GB"),
            (count, asked.min_count, asked.max_count, ""),
        ):
            if (low, high) not in ((0.0, math.inf), (1.0, math.inf)):
                text += f":{value:g}{unit}"
                apart += abs(math.log(value / min(max(value, low), high)))
        far[text] = min(apart, far.get(text, math.inf))
    return tuple(sorted(far, key=far.__getitem__)[:_NEAREST])
