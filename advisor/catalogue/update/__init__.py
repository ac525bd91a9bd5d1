"""Bring the catalogue up to date: fetch or take files, read, check, merge, switch.

Each source stands for itself: what fails or is refused leaves its part as it was. The snapshot in
use is never changed; a new one takes its place at once when it is complete and reads back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from advisor.catalogue import checks, store
from advisor.catalogue.adapters import Adapter, RawFile, Source
from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.checks.findings import Context
from advisor.catalogue.places import cache_folder
from advisor.catalogue.rows import CatalogueRows, read_rows, write_rows
from advisor.catalogue.snapshot import read_snapshot
from advisor.catalogue.update.download import DownloadLimits, HttpSession, Progress
from advisor.catalogue.update.given import given_files
from advisor.catalogue.update.merge import merged
from advisor.catalogue.update.outcome import Outcome
from advisor.catalogue.update.raw import RawStore
from advisor.errors import AdvisorError, CatalogueError

__all__ = ["Options", "Outcome", "Report", "given_files", "update"]

_KEPT_FINDINGS: Final = 100
_DOWNLOADS: Final = 4  # sources at once; each asks for one file at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to update."""

    # files of each source, given by the user; None downloads them
    files: dict[str, list[RawFile]] | None = None
    as_of: str = ""  # ISO date for given files that state none; ``""`` is unknown
    # accept, accept_fewer: sources whose sudden changes, or whose missing prices, are accepted
    accept: Collection[str] = ()
    accept_fewer: Collection[str] = ()
    mirror: str = ""  # where files are taken from instead of their own hosts
    limits: DownloadLimits = field(default_factory=DownloadLimits)
    on_progress: Callable[[Progress], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an update did; ``folder`` is the new snapshot, None where the old one stays."""

    outcomes: tuple[Outcome, ...]
    folder: Path | None
    message: str

    @property
    def is_current(self) -> bool:
        """At least one source was read and accepted, whether or not it brought anything new."""
        return any(one.status == "updated" for one in self.outcomes)

    def to_record(self) -> dict[str, Any]:
        """Return the answer to ``update``."""
        return {
            "schema_version": 1,
            "snapshot": None if self.folder is None else str(self.folder),
            "message": self.message,
            "sources": [one.to_record() for one in self.outcomes],
        }


def update(sources: Sequence[Source], options: Options) -> Report:
    """Update the catalogue from some sources.

    Raises CatalogueError if another update is running, or the snapshot in use cannot be read or
    written. What is wrong with a source stands in its outcome.
    """
    with store.locked():
        base = store.current_folder()
        before = read_rows(base)
        catalogue = Catalogue.load(base, with_overrides=False)
        raw = RawStore(cache_folder() / "raw")
        with ThreadPoolExecutor(max_workers=_DOWNLOADS) as pool:
            fetched = list(pool.map(lambda source: _fetched(source, raw, options), sources))
        outcomes = [_checked(*one, before, catalogue, options) for one in fetched]
        good = [one for one in outcomes if one.status == "updated"]
        if not good:
            return Report(outcomes=tuple(outcomes), folder=None, message="nothing was updated")
        rows = before
        for outcome in good:
            rows = merged(rows, outcome)
        return _switched(base, rows, tuple(outcomes))


_Fetched = tuple[str, Adapter | None, tuple[RawFile, ...], Outcome | None]


def _fetched(source: Source, raw: RawStore, options: Options) -> _Fetched:
    """Make the adapter and get its files; a failure becomes its outcome."""
    try:
        adapter = source.make()
        if options.files is not None:
            return source.name, adapter, tuple(options.files.get(source.name, ())), None
        session = HttpSession(
            source=source.name,
            store=raw,
            limits=options.limits,
            mirror=options.mirror,
            on_progress=options.on_progress,
        )
        return source.name, adapter, tuple(adapter.fetch(session)), None
    except Exception as error:
        return source.name, None, (), _failed(source.name, error)


def _checked(
    name: str,
    adapter: Adapter | None,
    files: tuple[RawFile, ...],
    failure: Outcome | None,
    before: CatalogueRows,
    catalogue: Catalogue,
    options: Options,
) -> Outcome:
    if failure is not None or adapter is None:
        return failure or _failed(name, CatalogueError("there is no adapter"))
    outdated = (adapter.source, *adapter.replaces)
    context = Context(
        before=before,
        outdated=outdated,
        accelerators=catalogue.accelerators,
        members=catalogue.matching_gpus,
        canonical=catalogue.canonical_gpu,
    )
    try:
        rows, findings = checks.check(adapter.parse(files, options.as_of), context)
    except Exception as error:
        return _failed(name, error)
    outcome = Outcome(
        source=name,
        status="updated",
        message="",
        types=len(rows.types),
        prices=len(rows.prices),
        findings=tuple(findings),
        files=files,
        rows=rows,
        outdated=outdated,
    )
    return _judged(outcome, options)


def _judged(outcome: Outcome, options: Options) -> Outcome:
    """Refuse what nobody accepted."""
    accepted = {"sudden-change": options.accept, "fewer-prices": options.accept_fewer}
    findings = tuple(
        replace(one, severity="accepted")
        if one.severity == "refused" and outcome.source in accepted[one.rule]
        else one
        for one in outcome.findings
    )
    outcome = replace(outcome, findings=findings)
    refused = [one for one in findings if one.severity == "refused"]
    if refused:
        first, more = refused[0], len(refused) - 1
        place = f"{first.instance_type}: " if first.instance_type else ""
        return replace(
            outcome,
            status="refused",
            rows=None,
            message=f"{place}{first.message}" + (f", and {more} more" if more else ""),
            hint=f"look at it; if it is right: {checks.REFUSALS[first.rule]} {outcome.source}",
        )
    if not outcome.prices:
        return replace(
            outcome,
            status="failed",
            rows=None,
            message="no price is left after the checks",
            hint="see the findings with --json",
        )
    return outcome


def _failed(name: str, error: Exception) -> Outcome:
    is_ours = isinstance(error, AdvisorError)
    message = str(error) if is_ours else f"{type(error).__name__}: {error}"
    hint = str(getattr(error, "hint", "")) or "report it to the authors of this adapter"
    return Outcome(source=name, status="failed", message=message, hint=hint)


def _switched(base: Path, rows: CatalogueRows, outcomes: tuple[Outcome, ...]) -> Report:
    """Write the new snapshot, read it back, and make it the one in use."""
    made_at = datetime.now(UTC)
    manifest = {
        "schema_version": 1,
        "made_at": made_at.isoformat(timespec="seconds"),
        "previous": base.name if base != store.bundled_folder() else "bundled",
        "sources": [one.to_record(_KEPT_FINDINGS) for one in outcomes],
    }

    def write(folder: Path) -> None:
        write_rows(folder, rows)
        store.write_manifest(folder, manifest)
        read_snapshot(folder, store.bundled_folder())

    folder = store.add(write, made_at, unlike=base)
    if folder is None:
        return Report(outcomes=outcomes, folder=None, message="nothing has changed")
    store.use(folder)
    return Report(outcomes=outcomes, folder=folder, message=f"in use now: {folder}")
