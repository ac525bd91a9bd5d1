"""``advisor data``: the published measurements, and bringing those that do not ship."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.lab.data import Dataset

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List the published measurements; fetch those that do not ship.",
)
_SHIPPED, _FETCHED, _MIRROR, _ABSENT = "shipped", "fetched", "mirror", "not here"


@app.command("list")
def list_datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """List the data sets: rows, licence, and whether they are here."""
    from advisor.lab.data import ALL

    records = [_record(dataset) for dataset in ALL]
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "datasets": records}, indent=2))
        return
    typer.echo(f"{'name':16}{'rows':>8}  {'state':9} licence")
    columns = max(shutil.get_terminal_size((10_000, 24)).columns, 60)  # of a file: any length
    for record in records:
        rows = "" if record["rows"] is None else f"{record['rows']:,}"
        line = f"{record['name']:16}{rows:>8}  {record['state']:9} {record['licence']}"
        typer.echo(textwrap.fill(line, columns, subsequent_indent=" " * 36))


@app.command("fetch")
def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Data set; see `advisor data list`.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Fetch every missing data set.")] = False,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FOLDER|URL",
            help="Take the tables from this copy, laid out like shared/data.",
        ),
    ] = "",
    host: Annotated[
        str, typer.Option("--host", help="Server to download from (default: GitHub).")
    ] = "",
) -> None:
    """Download, check and convert a data set that is not included."""
    from advisor.lab.data.fetch import GITHUB, Fetch

    if (name is None) != is_all:
        raise UsageError("name one data set, or --all", hint="see `advisor data list`")
    fetching = Fetch(
        source=source, host=host or GITHUB, say=lambda line: typer.echo(line, err=True)
    )
    for one in _missing(source) if name is None else [name]:
        for file, size in fetching.bring(one).items():
            unit = "bytes" if file.endswith(".parquet") else "rows"
            typer.echo(f"{one}: {file}: {size:,} {unit}")


def _missing(source: str) -> list[str]:
    """Return what can be brought and is not here; of upstream only what is read from there."""
    from advisor.lab.data import BY_NAME
    from advisor.lab.data.fetch import REMOTES, fetchable

    absent = [name for name in fetchable() if _state(BY_NAME[name]) in (_ABSENT, _MIRROR)]
    if source:
        return absent
    for name in absent:
        if name not in REMOTES:
            typer.echo(f"{name}: only from a copy of the tables: --from FOLDER or URL", err=True)
    return [name for name in absent if name in REMOTES]


def _record(dataset: Dataset) -> dict[str, Any]:
    state = _state(dataset)
    return {
        "name": dataset.name,
        "title": dataset.title,
        "rows": None if state == _ABSENT else _rows(dataset),
        "licence": dataset.licence,
        "state": state,
        "upstream": [one.url for one in dataset.upstream],
    }


def _state(dataset: Dataset) -> str:
    from advisor import data
    from advisor.lab.data.dataset import roots

    packaged = data.root("datasets")
    if dataset.ships:
        return _SHIPPED if dataset.is_in(packaged) else _ABSENT
    if all(place.path_under(data.user_data()) for place in dataset.places):
        return _FETCHED
    mirrored = [root for root in roots(packaged)[1:] if all(
        place.path_under(root) for place in dataset.places
    )]  # fmt: skip
    return _MIRROR if mirrored else _ABSENT


def _rows(dataset: Dataset) -> int | None:
    """Count the rows of all tables and runs; files that keep their form are not opened."""
    from advisor import data

    packaged = data.root("datasets")
    if dataset.files:
        return None
    rows = sum(len(dataset.read(table, packaged)) for table in dataset.tables)
    return rows + sum(len(dataset.read_runs(runs, packaged)) for runs in dataset.runs)
