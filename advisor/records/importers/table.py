"""A table of one's own: a CSV file with a run a row.

``time_s`` is needed. Understood besides: ``run`` (a name), ``program`` (runs of one program are
siblings), ``machine`` (``"2 x aws:g5.xlarge"``, a type of the catalogue), ``price_usd_per_h`` (of
one machine), ``cost_usd`` and ``status`` (ok, failed, oom, censored). Every other column is a
setting of the job.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, cast, get_args

from advisor.catalogue import Catalogue
from advisor.errors import CatalogueError
from advisor.records import Instances, RunRecord
from advisor.records.catalogued import named_machines
from advisor.records.importers.rows import Repeats, Row, located_records, read_rows
from advisor.records.importers.tracked import SETTINGS, UNKNOWN, known_machines, real, run_record
from advisor.records.nouns import Status

_OWN: Final = frozenset(
    {"time_s", "run", "program", "machine", "price_usd_per_h", "cost_usd", "status"}
)


def read(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read a table; ``machines`` made the runs whose row names none.

    Raises RunError naming file, row and column of a bad value.
    """
    repeats = Repeats()
    return located_records(
        read_rows(path, ["time_s"]), lambda row: _record(row, machines, repeats)
    )


def _record(row: Row, said: Instances | None, repeats: Repeats) -> RunRecord:
    status = row.label("status", default="ok") or "ok"
    if status not in get_args(Status):
        raise row.error("status", f"{status!r} is none of {', '.join(get_args(Status))}")
    is_over = status in ("ok", "censored")
    settings = {
        name: number if (number := real(text)) is not None else text
        for name, text in row.cells.items()
        if name not in _OWN and (text or "").strip()
    }
    run = row.label("run") or f"row-{row.number}"
    record = run_record(
        source="csv",
        run_id=run,
        family=row.label("program") or row.path.stem,
        settings=settings,
        machines=_machines(row, said),
        time_s=row.positive("time_s") if is_over else row.known("time_s"),
        status=cast(Status, status),
        cost_usd=row.known("cost_usd"),
    )
    facts = {name: value for name, value in settings.items() if name not in SETTINGS}
    said_besides = (f"{name}{value}" for name, value in sorted(facts.items()))
    job = replace(
        record.job,
        job_id="-".join([record.job.job_id, *said_besides]),
        facts={**facts, **record.job.facts},
    )
    cell = f"{job.job_id}/{record.instances} x {record.instance_key}"
    return replace(record, job=job, replicate=repeats.next(cell))


def _machines(row: Row, said: Instances | None) -> Instances:
    price = row.known("price_usd_per_h")
    name = row.label("machine")
    if not name:
        seen = Instances(provider="", instance_type=UNKNOWN, price_usd_per_h=price)
        found = known_machines(seen, said)
        return found if price is None else replace(found, price_usd_per_h=price)
    if price is None and said is not None:
        price = said.price_usd_per_h
    try:
        return replace(_named(name), price_usd_per_h=price)
    except CatalogueError as error:
        raise row.error("machine", f"{error}; {error.hint}") from error


@cache
def _named(name: str) -> Instances:
    return named_machines(name, _catalogue())


@cache
def _catalogue() -> Catalogue:
    return Catalogue.load()
