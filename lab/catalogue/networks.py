"""Collect what providers' pages state of networks, for ``advisor.lab.catalogue.build``.

The collected tables name types in the pages' own words; here they become rows of
``files.NETWORKS``, one for each type of the catalogue that a page speaks of.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from advisor.catalogue.networks import rate_of
from advisor.catalogue.rows import ListedOffer

# Collected file -> repository its pages lie in ("" where the page names it).
_AZURE_FILES: Final[Mapping[str, str]] = {
    "network_azure.csv": "MicrosoftDocs/azure-compute-docs:",
    "network_azure_older.csv": "",
}
_AZURE_READ: Final = "2026-11-21"
_OTHER_FILE: Final = "network_other.csv"
# Read after the collected tables were made, kept by hand beside this module; ``transport`` as the
# product writes it, ``no RDMA`` where a page says so, ``of`` the page's name.
_READ_LATER: Final = Path(__file__).with_name("networks.csv")
# Transport of a back-end network whose page gives a rate only. Azure's pages speak of InfiniBand
# throughout, Oracle's cluster networks are RoCE; the others say so in ``page_says``.
_AZURE_TRANSPORT: Final = "IB"
_TRANSPORT_WORDS: Final = (("InfiniBand", "IB"), ("RoCE", "RoCE"), ("RDMA", "RoCE"))
# "Standard_E16-4ads_v5" is an E16ads_v5 with 4 of its vCPUs, "_Promo" another price of the same
# size. Azure's pages name no network of theirs, but of the 25 that do have a figure of their own
# all 25 equal their base size (lab/experiments/network_assumed.py).
_CONSTRAINED: Final = re.compile(r"(?P<front>Standard_[A-Z]+\d+)-\d+(?P<rest>.*)")
_PROMOTED: Final = "_Promo"
# Scaleway's own names (H100-2-80G) against those of the price list (H100x2).
_SCALEWAY: Final = re.compile(r"(?P<gpu>[A-Z]+\d+S?)-(?P<count>\d+)-\d+G")
_LARGEST: Final = "(largest)"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRow:
    """What a page states of a type's network: a row of ``files.NETWORKS``."""

    provider: str
    instance_type: str
    network_gbps: float | None  # front-end (Ethernet) rate [Gbit/s]
    # back-end transport with its rate, e.g. ``"IB-1600"``; ``""`` where the page names none.
    rdma: str
    basis: str  # ``"stated"``, or of which other type the page speaks
    source: str
    licence: str
    as_of: str


def network_rows(source: Path, types: Sequence[ListedOffer]) -> tuple[NetworkRow, ...]:
    """Return the networks of ``types`` that the collected pages state, sorted by type."""
    known = {row.type_key: row for row in types}
    stated = {row.instance_type: row for row in _azure_stated(source)}
    azure = [name for provider, name in known if provider == "azure"]
    found = [_azure_row(name, stated) for name in azure]
    rows = [row for row in found if row is not None]
    rows += _other_rows(source, known)
    rows += _later_rows(known)
    named = [replace(row, rdma=_named_before(row, known)) for row in rows]
    return tuple(sorted(named, key=lambda row: (row.provider, row.instance_type)))


def base_size(name: str) -> str:
    """Return the Azure size of which another is a constrained or promotional variant.

    >>> base_size("Standard_E16-4ads_v5"), base_size("Standard_D2_v2_Promo"), base_size("A1")
    ('Standard_E16ads_v5', 'Standard_D2_v2', 'A1')
    """
    match = _CONSTRAINED.fullmatch(name.removesuffix(_PROMOTED))
    return match["front"] + match["rest"] if match else name.removesuffix(_PROMOTED)


def _azure_stated(source: Path) -> Iterator[NetworkRow]:
    import pandas as pd

    for file, repository in _AZURE_FILES.items():
        for row in pd.read_csv(source / file, keep_default_na=False).itertuples():
            of: Any = row
            yield NetworkRow(
                provider="azure",
                instance_type=of.instance_type,
                network_gbps=float(of.network_gbit_per_s),
                rdma=_transport(_AZURE_TRANSPORT, of.rdma_gbit_per_s),
                basis="stated",
                source=f"{repository}{of.source_page} @ {of.source_commit[:12]}",
                licence=of.licence,
                as_of=_AZURE_READ,
            )


def _azure_row(name: str, stated: Mapping[str, NetworkRow]) -> NetworkRow | None:
    own, base = stated.get(name), base_size(name)
    if own is not None or base == name or base not in stated:
        return own
    return replace(stated[base], instance_type=name, basis=f"stated of {base}")


def _other_rows(
    source: Path, known: Mapping[tuple[str, str], ListedOffer]
) -> Iterator[NetworkRow]:
    import pandas as pd

    for row in pd.read_csv(source / _OTHER_FILE, keep_default_na=False).itertuples():
        of: Any = row
        for name in _meant(of.provider, of.instance_type, known):
            yield NetworkRow(
                provider=of.provider,
                instance_type=name,
                network_gbps=float(of.network_gbit_per_s) if of.network_gbit_per_s else None,
                rdma=_transport(_transport_in(of.page_says), of.rdma_gbit_per_s),
                basis="stated" if name == of.instance_type else f"stated of {of.instance_type}",
                source=f"{of.source_url}: {of.page_says}",
                licence="facts of a public page",
                as_of=of.accessed,
            )


def _later_rows(known: Mapping[tuple[str, str], ListedOffer]) -> Iterator[NetworkRow]:
    import pandas as pd

    for row in pd.read_csv(_READ_LATER, keep_default_na=False, dtype=str).itertuples():
        of: Any = row
        for name in _meant(of.provider, of.instance_type, known):
            page = of.of or of.instance_type
            yield NetworkRow(
                provider=of.provider,
                instance_type=name,
                network_gbps=float(of.network_gbit_per_s) if of.network_gbit_per_s else None,
                rdma=of.transport,
                basis="stated" if name == page else f"stated of {page}",
                source=f"{of.source_url}: {of.page_says}",
                licence="facts of a public page",
                as_of=of.accessed,
            )


def _meant(provider: str, text: str, known: Mapping[tuple[str, str], ListedOffer]) -> list[str]:
    """Return the types that a page means: globs, the largest of a series, Scaleway's names.

    A series' maximum only fills a hole: what the provider says of each size is better.
    """
    if provider == "scaleway" and (match := _SCALEWAY.fullmatch(text)):
        text = match["gpu"] + (f"x{match['count']}" if match["count"] != "1" else "")
    own = {name: row for (owner, name), row in known.items() if owner == provider}
    if not text.endswith(_LARGEST):
        return [name for name in own if fnmatch.fnmatchcase(name, text)]
    globs = text.removesuffix(_LARGEST).strip().split(" and ")
    found = [[name for name in own if fnmatch.fnmatchcase(name, glob)] for glob in globs]
    largest = [max(names, key=lambda name: own[name].vcpus or 0.0) for names in found if names]
    return [name for name in largest if own[name].network_gbps is None]


def _transport(kind: str, gbps: Any) -> str:
    return f"{kind}-{float(gbps):g}" if gbps != "" else ""


def _transport_in(words: str) -> str:
    return next((kind for word, kind in _TRANSPORT_WORDS if word in words), "")


def _named_before(row: NetworkRow, known: Mapping[tuple[str, str], ListedOffer]) -> str:
    """Return the types' table's fuller name of the same transport, where the rates agree."""
    before, rate = known[row.provider, row.instance_type].rdma, rate_of(row.rdma)
    return before if rate is not None and rate_of(before) == rate else row.rdma
