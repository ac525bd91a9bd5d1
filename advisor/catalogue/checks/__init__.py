"""Check what an adapter read before it is believed; each rule comes from a real case.

===================  ==========  ================================================================
rule                 does        seen in
===================  ==========  ================================================================
no-price             drops       Azure's H100 at $0 (skypilot#3615); 2,754 zeros of libcloud's list
unknown-accelerator  drops       accelerators of a name that nobody describes
accelerator-memory   corrects    A100 of 40 or 80 GB under one name; "SizeInMiB: 80" of RunPod
machine-size         drops       memory in MiB or bytes where GiB were meant
sentinel             drops       TPU v6e at 700.0 whatever the size, where the price is unknown
host-only            drops       A2 read without its GPUs (skypilot-catalog#31)
region-outlier       drops       H100 x8 at 0.36-0.49 of other regions: another product's price;
                     or flags    CPU-only types do differ by that much (Azure's Brazil South East)
spot-above           drops       spot prices above the on-demand price
spot-is-on-demand    drops       RunPod: every spot price equals the on-demand price
dedicated-tenancy    marks       bare metal 6-10 % above the same virtual machine (karpenter)
uneven-price         flags       L40 x4 dearer than twice L40 x2 (Shadeform)
every-region         corrects    every type in every region at one price (Lambda, OCI)
sudden-change        refuses     a type's price changed by more than 30 %; ``--accept``
fewer-prices         refuses     more than 10 % of the prices are gone; ``--accept-fewer``
===================  ==========  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from advisor.catalogue.nouns import Accelerator
from advisor.catalogue.rows import PriceRow, Rows

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
    """What rules compare with.

    Attributes
    ----------
    before : Rows
        The snapshot in use.
    outdated : tuple of str
        What the sources begin with whose prices the new ones replace.
    accelerators : mapping of str to Accelerator
    members : callable
        From an accelerator's name to canonical names; raises ``AdvisorError``.
    canonical : callable
        The same for a name that means one; raises ``AdvisorError``.
    """

    before: Rows
    outdated: tuple[str, ...]
    accelerators: Mapping[str, Accelerator]
    members: Callable[[str], Collection[str]]
    canonical: Callable[[str], str]

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


Checked = tuple[Rows, list[Finding]]
Rule = Callable[[Rows, Context], Checked]


def check(rows: Rows, context: Context) -> Checked:
    """Apply all rules in order; return what is left and what was found."""
    from advisor.catalogue.checks import history, prices, sizes, types

    findings: list[Finding] = []
    rules = (*types.RULES, prices.drop_missing, *sizes.RULES, *prices.RULES, *history.RULES)
    for rule in rules:
        rows, found = rule(rows, context)
        findings += found
    return rows, findings


REFUSALS: Final = {"sudden-change": "--accept", "fewer-prices": "--accept-fewer"}
