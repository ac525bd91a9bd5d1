"""``advisor runs import``: labelled runs of other formats become records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.quantity_types import USD, quantity
from advisor.records.importers.formats import FORMATS

if TYPE_CHECKING:
    from advisor.records import Instances

HELP = "Read runs of another format and write them as records. Formats: " + "; ".join(
    f"{name} ({about})" for name, (_, about) in FORMATS.items()
)


def command(
    fmt: Annotated[
        str, typer.Argument(metavar="FORMAT", help="Format of the runs, one of those named above.")
    ],
    path: Annotated[Path, typer.Argument(help="File or folder to read.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write (default: records.jsonl.gz).")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            help="Machines that the runs ran on, where the tracker does not know: g5.xlarge or "
            "'2 x aws:g5.xlarge'."
        ),
    ] = None,
    price: Annotated[
        float | None,
        quantity(USD, "--price", help="Price paid for one of these machines, in USD per hour."),
    ] = None,
) -> None:
    """Read runs of another format and write them as records; bad rows are refused."""
    from advisor.records import write_records
    from advisor.records.importers.formats import read
    from advisor.records.importers.tracked import UNKNOWN

    records = read(fmt, path, _machines(machine, price))
    target = out or Path("records.jsonl.gz")
    write_records(target, records)
    counts = Counter(record.status for record in records)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    typer.echo(f"{len(records)} runs ({told}) in {target}")
    nameless = sum(record.configuration[0].instance_type == UNKNOWN for record in records)
    if nameless:
        typer.echo(
            f"note: the machines of {nameless} runs are unknown; add --machine g5.xlarge", err=True
        )


def _machines(machine: str | None, price: float | None) -> Instances | None:
    """Return what the user says of the machines; a price alone is of machines that were seen."""
    from advisor.catalogue import Catalogue
    from advisor.records import Instances
    from advisor.records.catalogued import named_machines
    from advisor.records.importers.tracked import UNKNOWN

    if machine is not None:
        return named_machines(machine, Catalogue.load(), price_usd_per_h=price)
    if price is not None:
        return Instances(provider="", instance_type=UNKNOWN, price_usd_per_h=price)
    return None
