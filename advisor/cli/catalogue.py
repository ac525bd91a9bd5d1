"""``advisor catalogue``: list, show, compare and update the offers of the cloud providers."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from advisor import catalogue, words
from advisor.ask import BYTES_WITH_UNIT, OUTPUT, USD, Printed, argument, option
from advisor.cli.options import group, print_json
from advisor.errors import UsageError


class Sort(StrEnum):
    """What ``list`` sorts by."""

    price = "price"
    price_per_accelerator = "price-per-accelerator"
    price_per_vcpu = "price-per-vcpu"
    name = "name"
    vcpus = "vcpus"
    memory = "memory"
    age = "age"


class Form(StrEnum):
    """How an answer is written."""

    table = "table"
    json = "json"
    csv = "csv"


# Options that several verbs have.
_SNAPSHOT: Final[dict[str, Any]] = {
    "help": "Folder of a snapshot (default: the one in use).", "flags": "--path",
}  # fmt: skip
_RULES: Final[dict[str, Any]] = {"help": "Your own prices, machines and quotas (overrides.csv)."}
_CLOUD: Final[dict[str, Any]] = {"help": "Providers, comma-separated: aws,gcp."}
_REGION: Final[dict[str, Any]] = {"help": "Regions as globs, comma-separated: 'us-*,eu-*'."}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueList(Printed):
    """List priced offers, cheapest first."""

    # fmt: off
    cloud: str | None = option(**_CLOUD)
    region: str | None = option(**_REGION)
    types: str | None = option("Instance types as globs: 'm5.*,c5.*'.", flags="--type")
    gpus: str | None = option("Accelerators: A100:8, L4, A100:40GB..80GB:1..8, H100,H200.")
    cpu_only: bool = option("Show only types without accelerators.", default=False)
    min_vcpus: float = option("Minimum number of virtual CPUs of a machine.", default=0, min=0)
    min_memory: float = option("Minimum main memory of a machine: 64GB or 64GiB.",
        BYTES_WITH_UNIT, 0.0)
    max_price: float | None = option("Maximum price of one machine, in USD per hour.", USD)
    spot: bool = option("Show only spot prices.", default=False)
    on_demand: bool = option("Show only on-demand prices.", default=False)
    reserved: bool = option("Show only prices for a commitment of one or three years.",
        default=False)
    max_age: float | None = option("Maximum age of a price, in days; those without a date are "
        "left out.", min=0)
    retired: bool = option("Include types that can no longer be rented.", default=False)
    cheapest: bool = option("Show only the cheapest offer of each type.", default=False)
    sort: Sort = option("Sort order; ties are sorted by price.", default=Sort.price, panel=OUTPUT)
    top: int | None = option("Maximum number of offers to show (default: 20 in a table, all "
        "otherwise).", flags="--top -n", panel=OUTPUT, min=1)
    form: Form = option("Output format.", default=Form.table,
        flags="--format", panel=OUTPUT)
    path: Path | None = option(**_SNAPSHOT)
    overrides: Path | None = option(**_RULES)
    # fmt: on

    def __call__(self) -> None:
        known = catalogue.Catalogue.load(self.path, overrides=self.overrides)
        listings = ("retired",) if self.retired else ()
        wanted = catalogue.OfferFilter(
            providers=_parts(self.cloud),
            regions=_parts(self.region),
            types=_parts(self.types),
            gpus=None if self.gpus is None else catalogue.parse_gpus(self.gpus),
            is_cpu_only=self.cpu_only,
            min_vcpus=self.min_vcpus,
            min_memory_bytes=self.min_memory,
            max_price_usd_per_h=float("inf") if self.max_price is None else self.max_price,
            max_age_days=float("inf") if self.max_age is None else self.max_age,
            pricing=_pricing(spot=self.spot, on_demand=self.on_demand, reserved=self.reserved),
            listings=(*catalogue.OfferFilter().listings, *listings),
            with_unspecified=True,
        )
        offers = known.select(wanted)
        found = catalogue.ordered_offers(known, offers, self.sort.value, cheapest=self.cheapest)
        form = Form.json if self.as_json else self.form
        limit = self.top if self.top is not None else (20 if form is Form.table else len(found))
        record = catalogue.list_record(known, found.take(slice(limit)), len(found))
        _warn_of_age(known)
        if form is Form.csv:
            _write_csv(record["offers"])
        else:
            _print(record, "offers", as_json=form is Form.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueShow(Printed):
    """Show one instance type with its prices, links and sources."""

    # fmt: off
    name: str = argument("Instance type, e.g. p4d.24xlarge.", ..., metavar="TYPE")
    cloud: str | None = option("Provider, if several use this name.")
    all_regions: bool = option("Show the prices of all regions.", default=False)
    path: Path | None = option(**_SNAPSHOT)
    overrides: Path | None = option(**_RULES)
    # fmt: on

    def __call__(self) -> None:
        known = catalogue.Catalogue.load(self.path, overrides=self.overrides)
        record = catalogue.type_record(known, known.instance_type(self.name, provider=self.cloud))
        _print(record, "instance_type", as_json=self.as_json, all_regions=self.all_regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueInfo(Printed):
    """Show how old and how complete the catalogue is."""

    # fmt: off
    path: Path | None = option(**_SNAPSHOT)
    overrides: Path | None = option(**_RULES)
    # fmt: on

    def __call__(self) -> None:
        known = catalogue.Catalogue.load(self.path, overrides=self.overrides)
        _print(catalogue.info_record(known), "info", as_json=self.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueStorage(Printed):
    """List prices of storage and outgoing traffic."""

    # fmt: off
    cloud: str | None = option(**_CLOUD)
    region: str | None = option(**_REGION)
    path: Path | None = option(**_SNAPSHOT)
    # fmt: on

    def __call__(self) -> None:
        providers, regions = _parts(self.cloud), _parts(self.region)
        found = [
            vars(one)
            for one in catalogue.Catalogue.load(self.path).other_prices
            if (not providers or one.provider in providers)
            and (not regions or any(fnmatchcase(one.region, glob) for glob in regions))
        ]
        if self.as_json:
            print_json({"schema_version": 1, "prices": found})
        else:
            words.other_prices(found, _console())


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueDiff(Printed):
    """Compare two snapshots: types and prices added, removed, changed."""

    # fmt: off
    old: str = argument("A snapshot: bundled, previous, current, or a folder.", "previous")
    new: str = argument("The snapshot to compare with it.", "current")
    top: int = option("Maximum number of changes to show.",
        default=20, flags="--top -n", panel=OUTPUT, min=0)
    # fmt: on

    def __call__(self) -> None:
        folders = [catalogue.named_folder(name) for name in (self.old, self.new)]
        load = partial(catalogue.Catalogue.load, with_overrides=False)
        before, after = map(load, folders)
        compared = {"schema_version": 1, "old": str(folders[0]), "new": str(folders[1])}
        record = compared | catalogue.difference(before, after)
        _print(record, "difference", as_json=self.as_json, top=self.top)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueUpdate(Printed):
    """Update the catalogue, and keep the previous snapshot."""

    # fmt: off
    names: list[str] | None = argument("Sources to update, e.g. aws azure (default: all).",
        metavar="SOURCE")
    given: Path | None = option("Folder or archive of downloaded files: no network is used.",
        flags="--from")
    as_of: str = option("Day (YYYY-MM-DD) to assume for files that state none, with --from.",
        default="")
    accept: list[str] | None = option("Accept sudden price changes of this source; may be "
        "repeated.", metavar="SOURCE")
    accept_fewer: list[str] | None = option("Accept that this source has lost prices; may be "
        "repeated.", metavar="SOURCE")
    mirror: str = option("Download each file from URL/HOST/PATH of this mirror.",
        default="", envvar="ADVISOR_CATALOGUE_MIRROR")
    timeout: float = option("Maximum time to wait for one file, in seconds.", default=300, min=1)
    # fmt: on

    def __call__(self) -> None:
        _check_date(self.as_of)
        chosen = catalogue.sources(self.names or ())
        options = catalogue.Options(
            as_of=self.as_of,
            accept=self.accept or (),
            accept_fewer=self.accept_fewer or (),
            mirror=self.mirror,
            limits=catalogue.DownloadLimits(file_s=self.timeout),
        )
        if self.given is None:
            with _downloads() as show:
                report = catalogue.update_catalogue(chosen, replace(options, on_progress=show))
        else:
            with catalogue.given_files(self.given, chosen) as files:
                with_files = [source for source in chosen if source.name in files]
                report = catalogue.update_catalogue(with_files, replace(options, files=files))
        _print(report.to_record(), "update", as_json=self.as_json)
        if report.folder is None and not report.is_current:
            raise typer.Exit(1)


def _check_date(text: str) -> None:
    try:
        date.fromisoformat(text or "2026-01-01")
    except ValueError:
        raise UsageError(
            f"--as-of: cannot read {text!r} as a day", hint="write e.g. 2026-11-21"
        ) from None


@contextlib.contextmanager
def _downloads() -> Iterator[Callable[[catalogue.Progress], None]]:
    """Give what shows downloads: bars on a terminal, a line for each source elsewhere."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    started: dict[str, rich.TaskID] = {}
    with rich.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:

        def show(one: catalogue.Progress) -> None:
            if one.source not in started:
                started[one.source] = bars.add_task(one.source)
                if not console.is_terminal:
                    typer.echo(f"downloading {one.source}", err=True)
            bars.update(
                started[one.source], description=f"{one.source}: {one.name}",
                completed=one.done_bytes, total=one.total_bytes,
            )  # fmt: skip

        yield show


def rollback() -> None:
    """Return to the snapshot before the last update."""
    typer.echo(f"in use now: {catalogue.roll_back()}")


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _pricing(*, spot: bool, on_demand: bool, reserved: bool) -> tuple[catalogue.Pricing, ...]:
    chosen: dict[catalogue.Pricing, bool] = {
        "on-demand": on_demand, "spot": spot, "reserved-1y": reserved, "reserved-3y": reserved,
    }  # fmt: skip
    return tuple(name for name, is_on in chosen.items() if is_on) or ("on-demand", "spot")


def _print(record: Mapping[str, Any], what: str, *, as_json: bool, **options: Any) -> None:
    if as_json:
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
        return

    words.VIEWS[what](record, _console(), **options)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _write_csv(offers: Sequence[Mapping[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, catalogue.OFFER_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(catalogue.flat_record(offer) for offer in offers)


def _warn_of_age(known: catalogue.Catalogue) -> None:
    age = known.age_days()
    if age > catalogue.OLD_DAYS:
        typer.echo(
            f"note: the newest price is {age:.0f} days old: run `advisor catalogue update`",
            err=True,
        )


app = group(
    "List, show, compare and update the offers of the cloud providers. Works offline; only "
    "`update` uses the network.",
    {"list": CatalogueList, "show": CatalogueShow, "info": CatalogueInfo,
     "storage": CatalogueStorage, "diff": CatalogueDiff, "update": CatalogueUpdate,
     "rollback": rollback},
)  # fmt: skip
