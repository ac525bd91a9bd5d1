"""``advisor catalogue``: list, show, compare and update the offers of the cloud providers."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.cli.options import BYTES_WITH_UNIT, USD, quantity
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.catalogue import Catalogue, Pricing, Progress

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List, show, compare and update the offers of the cloud providers. Works offline; only "
    "`update` uses the network.",
)


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


Snapshot = Annotated[
    Path | None, typer.Option("--path", help="Folder of a snapshot (default: the one in use).")
]
Rules = Annotated[
    Path | None,
    typer.Option("--overrides", help="Your own prices, machines and quotas (overrides.csv)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]
Cloud = Annotated[str | None, typer.Option(help="Providers, comma-separated: aws,gcp.")]
Region = Annotated[
    str | None, typer.Option(help="Regions as globs, comma-separated: 'us-*,eu-*'.")
]


@app.command("list")
def list_offers(
    cloud: Cloud = None,
    region: Region = None,
    types: Annotated[
        str | None, typer.Option("--type", help="Instance types as globs: 'm5.*,c5.*'.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Accelerators: A100:8, L4, A100:40GB..80GB:1..8, H100,H200.")
    ] = None,
    cpu_only: Annotated[
        bool, typer.Option("--cpu-only", help="Show only types without accelerators.")
    ] = False,
    min_vcpus: Annotated[
        float, typer.Option(min=0, help="Minimum number of virtual CPUs of a machine.")
    ] = 0,
    min_memory: Annotated[
        float,
        quantity(
            BYTES_WITH_UNIT,
            "--min-memory",
            help="Minimum main memory of a machine: 64GB or 64GiB.",
        ),
    ] = 0.0,
    max_price: Annotated[
        float | None,
        quantity(USD, "--max-price", help="Maximum price of one machine, in USD per hour."),
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Show only spot prices.")] = False,
    on_demand: Annotated[
        bool, typer.Option("--on-demand", help="Show only on-demand prices.")
    ] = False,
    reserved: Annotated[
        bool,
        typer.Option(
            "--reserved", help="Show only prices for a commitment of one or three years."
        ),
    ] = False,
    max_age: Annotated[
        float | None,
        typer.Option(
            min=0, help="Maximum age of a price, in days; those without a date are left out."
        ),
    ] = None,
    retired: Annotated[
        bool, typer.Option("--retired", help="Include types that can no longer be rented.")
    ] = False,
    cheapest: Annotated[
        bool, typer.Option("--cheapest", help="Show only the cheapest offer of each type.")
    ] = False,
    sort: Annotated[Sort, typer.Option(help="Sort order; ties are sorted by price.")] = Sort.price,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            "-n",
            min=1,
            help="Maximum number of offers to show (default: 20 in a table, all otherwise).",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Output format.")] = Form.table,
    as_json: AsJson = False,
    path: Snapshot = None,
    overrides: Rules = None,
) -> None:
    """List priced offers, cheapest first."""
    from advisor.catalogue import (
        Catalogue,
        OfferFilter,
        first_offers,
        list_record,
        ordered_offers,
        parse_gpus,
    )

    catalogue = Catalogue.load(path, overrides=overrides)
    listings = ("retired",) if retired else ()
    wanted = OfferFilter(
        providers=_parts(cloud),
        regions=_parts(region),
        types=_parts(types),
        gpus=None if gpus is None else parse_gpus(gpus),
        is_cpu_only=cpu_only,
        min_vcpus=min_vcpus,
        min_memory_bytes=min_memory,
        max_price_usd_per_h=float("inf") if max_price is None else max_price,
        max_age_days=float("inf") if max_age is None else max_age,
        pricing=_pricing(spot=spot, on_demand=on_demand, reserved=reserved),
        listings=(*OfferFilter().listings, *listings),
        with_unspecified=True,
    )
    found = ordered_offers(catalogue, catalogue.select(wanted), sort.value, cheapest=cheapest)
    form = Form.json if as_json else form
    limit = top if top is not None else (20 if form is Form.table else len(found))
    record = list_record(catalogue, first_offers(found, limit), len(found))
    _warn_of_age(catalogue)
    if form is Form.csv:
        _write_csv(record["offers"])
    else:
        _print(record, "offers", as_json=form is Form.json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="TYPE", help="Instance type, e.g. p4d.24xlarge.")],
    cloud: Annotated[str | None, typer.Option(help="Provider, if several use this name.")] = None,
    all_regions: Annotated[
        bool, typer.Option("--all-regions", help="Show the prices of all regions.")
    ] = False,
    as_json: AsJson = False,
    path: Snapshot = None,
    overrides: Rules = None,
) -> None:
    """Show one instance type with its prices, links and sources."""
    from advisor.catalogue import Catalogue, type_record

    catalogue = Catalogue.load(path, overrides=overrides)
    record = type_record(catalogue, catalogue.instance_type(name, provider=cloud))
    _print(record, "instance_type", as_json=as_json, all_regions=all_regions)


@app.command()
def info(as_json: AsJson = False, path: Snapshot = None, overrides: Rules = None) -> None:
    """Show how old and how complete the catalogue is."""
    from advisor.catalogue import Catalogue, info_record

    catalogue = Catalogue.load(path, overrides=overrides)
    _print(info_record(catalogue), "info", as_json=as_json)


@app.command()
def storage(
    cloud: Cloud = None, region: Region = None, as_json: AsJson = False, path: Snapshot = None
) -> None:
    """List prices of storage and outgoing traffic."""
    from advisor.catalogue import Catalogue

    providers, regions = _parts(cloud), _parts(region)
    found = [
        asdict(one)
        for one in Catalogue.load(path).other_prices
        if (not providers or one.provider in providers)
        and (not regions or any(fnmatchcase(one.region, glob) for glob in regions))
    ]
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "prices": found}, indent=2))
    else:
        from advisor.words import other_prices

        other_prices(found, _console())


@app.command()
def diff(
    old: Annotated[
        str, typer.Argument(help="A snapshot: bundled, previous, current, or a folder.")
    ] = "previous",
    new: Annotated[str, typer.Argument(help="The snapshot to compare with it.")] = "current",
    top: Annotated[
        int, typer.Option("--top", "-n", min=0, help="Maximum number of changes to show.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Compare two snapshots: types and prices added, removed, changed."""
    from advisor.catalogue import Catalogue, difference, named_folder

    folders = [named_folder(name) for name in (old, new)]
    before, after = (Catalogue.load(folder, with_overrides=False) for folder in folders)
    record = difference(before, after).to_record(str(folders[0]), str(folders[1]))
    _print(record, "difference", as_json=as_json, top=top)


@app.command()
def update(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="Sources to update, e.g. aws azure (default: all)."),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option("--from", help="Folder or archive of downloaded files: no network is used."),
    ] = None,
    as_of: Annotated[
        str,
        typer.Option(help="Day (YYYY-MM-DD) to assume for files that state none, with --from."),
    ] = "",
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="Accept sudden price changes of this source; may be repeated."
        ),
    ] = None,
    accept_fewer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="Accept that this source has lost prices; may be repeated."
        ),
    ] = None,
    mirror: Annotated[
        str,
        typer.Option(
            envvar="ADVISOR_CATALOGUE_MIRROR",
            help="Download each file from URL/HOST/PATH of this mirror.",
        ),
    ] = "",
    timeout: Annotated[
        float, typer.Option(min=1, help="Maximum time to wait for one file, in seconds.")
    ] = 300,
    as_json: AsJson = False,
) -> None:
    """Update the catalogue, and keep the previous snapshot."""
    from advisor.catalogue import DownloadLimits, Options, given_files, sources
    from advisor.catalogue import update_catalogue as bring_up_to_date

    _check_date(as_of)
    chosen = sources(names or ())
    options = Options(
        as_of=as_of,
        accept=accept or (),
        accept_fewer=accept_fewer or (),
        mirror=mirror,
        limits=DownloadLimits(file_s=timeout),
    )
    if given is None:
        with _downloads() as show:
            report = bring_up_to_date(chosen, replace(options, on_progress=show))
    else:
        with given_files(given, chosen) as files:
            with_files = [source for source in chosen if source.name in files]
            report = bring_up_to_date(with_files, replace(options, files=files))
    _print(report.to_record(), "update", as_json=as_json)
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
def _downloads() -> Iterator[Callable[[Progress], None]]:
    """Give what shows downloads: bars on a terminal, a line for each source elsewhere."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    started: dict[str, rich.TaskID] = {}
    with rich.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:

        def show(one: Progress) -> None:
            if one.source not in started:
                started[one.source] = bars.add_task(one.source)
                if not console.is_terminal:
                    typer.echo(f"downloading {one.source}", err=True)
            bars.update(
                started[one.source], description=f"{one.source}: {one.name}",
                completed=one.done_bytes, total=one.total_bytes,
            )  # fmt: skip

        yield show


@app.command()
def rollback() -> None:
    """Return to the snapshot before the last update."""
    from advisor.catalogue import roll_back

    typer.echo(f"in use now: {roll_back()}")


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _pricing(*, spot: bool, on_demand: bool, reserved: bool) -> tuple[Pricing, ...]:
    chosen: list[Pricing] = []
    if on_demand:
        chosen.append("on-demand")
    if spot:
        chosen.append("spot")
    if reserved:
        chosen += ["reserved-1y", "reserved-3y"]
    return tuple(chosen) or ("on-demand", "spot")


def _print(record: Mapping[str, Any], what: str, *, as_json: bool, **options: Any) -> None:
    if as_json:
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
        return
    from advisor.words import VIEWS

    VIEWS[what](record, _console(), **options)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _write_csv(offers: Sequence[Mapping[str, Any]]) -> None:
    from advisor.catalogue import OFFER_FIELDS, flat_record

    writer = csv.DictWriter(sys.stdout, OFFER_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat_record(offer) for offer in offers)


def _warn_of_age(catalogue: Catalogue) -> None:
    from advisor.catalogue import OLD_DAYS

    age = catalogue.age_days()
    if age > OLD_DAYS:
        typer.echo(
            f"note: the newest price is {age:.0f} days old: run `advisor catalogue update`",
            err=True,
        )
