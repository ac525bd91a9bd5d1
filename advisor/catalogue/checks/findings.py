"""Findings of the rules, and the context that rules are given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from advisor.catalogue.nouns import Accelerator
from advisor.catalogue.rows import CatalogueRows, PriceRow

EVERYWHERE: Final = "all-regions"  # the region of a list price that names none
Severity = Literal["dropped", "corrected", "marked", "flagged", "refused", "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found; ``instance_type`` and ``region`` may be ``""``."""

    rule: str
    severity: Severity
    provider: str
    instance_type: str = ""
    region: str = ""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What rules compare with."""

    before: CatalogueRows  # the snapshot in use
    outdated: tuple[str, ...]  # what the sources begin with whose prices the new ones replace
    accelerators: Mapping[str, Accelerator]
    # from an accelerator's name to canonical names; raises ``AdvisorError``
    members: Callable[[str], Collection[str]]
    canonical: Callable[[str], str]  # the same for a name that means one; raises ``AdvisorError``

    def replaced_by(self, prices: Iterable[PriceRow]) -> tuple[PriceRow, ...]:
        """Return the prices of before that new ones replace."""
        return replaced_by(prices, self.before.prices, self.outdated)


def replaced_by(
    new: Iterable[PriceRow], before: Iterable[PriceRow], outdated: tuple[str, ...]
) -> tuple[PriceRow, ...]:
    """Return the prices of before that new ones replace.

    A region is replaced as a whole, as far as its prices come from an outdated source; a price
    with a new one of its own in any case. A list price without a region stands for all of them.
    """
    keys = {one.key for one in new}
    regions = {(provider, region) for provider, _, region in keys}
    everywhere = {provider for provider, region in regions if region == EVERYWHERE}
    providers = {provider for provider, _ in regions}

    def is_covered(one: PriceRow) -> bool:
        return (
            (one.provider, one.region) in regions
            or one.provider in everywhere
            or (one.provider in providers and one.region == EVERYWHERE)
        )

    return tuple(
        one
        for one in before
        if one.key in keys or (is_covered(one) and one.provenance.source.startswith(outdated))
    )


Checked = tuple[CatalogueRows, list[Finding]]
Rule = Callable[[CatalogueRows, Context], Checked]
