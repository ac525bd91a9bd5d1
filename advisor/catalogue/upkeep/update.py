"""Bring the catalogue up to date: fetch or take files, read, check, merge, switch.

Each source stands for itself: what fails or is refused leaves its part as it was. The snapshot in
use is never changed; a new one takes its place at once when it is complete and reads back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from advisor.answer import Recorded, to_record
from advisor.catalogue import snapshot
from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.providers.base import Adapter, RawFile
from advisor.catalogue.providers.sources import Source
from advisor.catalogue.rows import (
    TYPE_FACTS,
    Listed,
    ListedOffer,
    read_rows,
    types_of,
    with_types,
    write_rows,
)
from advisor.catalogue.snapshot import cache_folder
from advisor.catalogue.upkeep import checks
from advisor.catalogue.upkeep.checks import Context, Finding, replaced_by
from advisor.catalogue.upkeep.download import DownloadLimits, HttpSession, Progress, RawStore
from advisor.errors import AdvisorError
from advisor.providers import keep

if TYPE_CHECKING:
    pass


Status = Literal["updated", "refused", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Recorded):
    """What became of one source."""

    said: ClassVar[Sequence[str]] = (
        "source", "status", "message", "hint", "types", "prices", "found", "findings", "files",
    )  # fmt: skip

    source: str
    status: Status
    message: str
    hint: str = ""
    types: int = 0
    prices: int = 0
    findings: tuple[Finding, ...] = ()
    files: tuple[RawFile, ...] = ()
    rows: Listed | None = None
    outdated: tuple[str, ...] = ()

    @property
    def found(self) -> dict[str, int]:
        """How many findings there are of a rule and severity."""
        return dict(Counter(f"{one.rule} {one.severity}" for one in self.findings))


def merged(before: Listed, outcome: Outcome) -> Listed:
    """Return the rows of before with a source's own in place of what they replace.

    A type that is known keeps its facts and gains those it lacked: a price list says less of a
    machine than the bundled table. A type whose last price is gone stays, without a price.
    """
    new = outcome.rows
    if new is None:
        return before
    gone = {one.key for one in replaced_by(new, before, outcome.outdated)}
    known, stated = types_of(before), types_of(new)
    facts = {key: _completed(known[key], one) for key, one in stated.items() if key in known}
    rows = (*new, *(one for one in before if one.region and one.key not in gone))
    return with_types(
        tuple(replace(one, **facts.get(one.type_key, {})) for one in rows),
        {key: replace(one, **facts.get(key, {})) for key, one in known.items()},
    )


def _completed(known: ListedOffer, stated: ListedOffer) -> dict[str, Any]:
    """Return the facts of a machine that is known, with those of a source that it lacked."""
    lacking = {
        name for name in TYPE_FACTS if getattr(known, name) in (None, "") and name != "accelerator"
    }
    return {name: getattr(stated if name in lacking else known, name) for name in TYPE_FACTS}


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
class Report(Recorded):
    """What an update did; ``folder`` is the new snapshot, None where the old one stays."""

    renamed: ClassVar[Mapping[str, str]] = {"folder": "snapshot", "outcomes": "sources"}

    schema_version: int = 1
    folder: Path | None
    message: str
    outcomes: tuple[Outcome, ...]

    @property
    def is_current(self) -> bool:
        """At least one source was read and accepted, whether or not it brought anything new."""
        return any(one.status == "updated" for one in self.outcomes)


def update_catalogue(sources: Sequence[Source], options: Options) -> Report:
    """Update the catalogue from some sources.

    Raises CatalogueError if another update is running, or the snapshot in use cannot be read or
    written. What is wrong with a source stands in its outcome.
    """
    with snapshot.locked():
        base = snapshot.current_folder()
        before = read_rows(base)
        catalogue = Catalogue.load(base, with_overrides=False)
        raw = RawStore(cache_folder() / "raw")
        with ThreadPoolExecutor(max_workers=_DOWNLOADS) as pool:
            fetched = list(pool.map(lambda source: _fetched(source, raw, options), sources))
        outcomes = [
            _checked(source.name, one, before, catalogue, options)
            for source, one in zip(sources, fetched, strict=True)
        ]
        good = [one for one in outcomes if one.status == "updated"]
        if not good:
            return Report(outcomes=tuple(outcomes), folder=None, message="nothing was updated")
        rows = before
        for outcome in good:
            rows = merged(rows, outcome)
        return _switched(base, rows, tuple(outcomes))


_Fetched = tuple[Adapter, tuple[RawFile, ...]]


def _fetched(source: Source, raw: RawStore, options: Options) -> _Fetched | Outcome:
    """Make the adapter and get its files; a failure becomes its outcome."""
    try:
        adapter = source.make()
        if options.files is not None:
            return adapter, tuple(options.files.get(source.name, ()))
        session = HttpSession(
            source=source.name,
            store=raw,
            limits=options.limits,
            mirror=options.mirror,
            on_progress=options.on_progress,
        )
        return adapter, tuple(adapter.fetch(session))
    except Exception as error:
        return _failed(source.name, error)


def _checked(
    name: str, fetched: _Fetched | Outcome, before: Listed, catalogue: Catalogue, options: Options
) -> Outcome:
    if isinstance(fetched, Outcome):
        return fetched
    adapter, files = fetched
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
        keep(adapter)
    except Exception as error:
        return _failed(name, error)
    outcome = Outcome(
        source=name,
        status="updated",
        message="",
        types=len(types_of(rows)),
        prices=sum(bool(one.region) for one in rows),
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


def _switched(base: Path, rows: Listed, outcomes: tuple[Outcome, ...]) -> Report:
    """Write the new snapshot, read it back, and make it the one in use."""
    made_at = datetime.now(UTC)
    manifest = {
        "schema_version": 1,
        "made_at": made_at.isoformat(timespec="seconds"),
        "previous": base.name if base != snapshot.bundled_folder() else "bundled",
        "sources": [
            record | {"findings": record["findings"][:_KEPT_FINDINGS]}
            for record in map(to_record, outcomes)
        ],
    }

    def write(folder: Path) -> None:
        write_rows(folder, rows)
        snapshot.write_manifest(folder, manifest)
        Catalogue.load(folder, with_overrides=False)

    folder = snapshot.add(write, made_at, unlike=base)
    if folder is None:
        return Report(outcomes=outcomes, folder=None, message="nothing has changed")
    snapshot.use(folder)
    return Report(outcomes=outcomes, folder=folder, message=f"in use now: {folder}")
