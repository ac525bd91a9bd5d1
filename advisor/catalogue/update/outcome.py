"""Outcome of one source of an update: updated, refused or failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from advisor.catalogue.adapters import RawFile
from advisor.catalogue.checks.findings import Finding
from advisor.catalogue.rows import CatalogueRows

Status = Literal["updated", "refused", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one source."""

    source: str
    status: Status
    message: str
    hint: str = ""
    types: int = 0
    prices: int = 0
    findings: tuple[Finding, ...] = ()
    files: tuple[RawFile, ...] = ()
    rows: CatalogueRows | None = None
    outdated: tuple[str, ...] = ()

    def to_record(self, most_findings: int | None = None) -> dict[str, Any]:
        """Return what is shown of it; a snapshot keeps only the first findings of each source."""
        counts = Counter(f"{one.rule} {one.severity}" for one in self.findings)
        return {
            "source": self.source,
            "status": self.status,
            "message": self.message,
            "hint": self.hint,
            "types": self.types,
            "prices": self.prices,
            "found": dict(counts),
            "findings": [asdict(one) for one in self.findings[:most_findings]],
            "files": [
                {
                    "name": one.name,
                    "url": one.url,
                    "sha256": one.sha256,
                    "retrieved_at": one.retrieved_at,
                }
                for one in self.files
            ],
        }
