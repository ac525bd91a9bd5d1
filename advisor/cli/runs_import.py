"""``advisor runs import``: labelled runs of other formats become records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from advisor.records.importers.formats import FORMATS


def register(app: typer.Typer) -> None:
    """Add the verb ``import`` to the group ``runs``."""
    app.command("import", help=_HELP)(command)


def command(
    fmt: Annotated[
        str, typer.Argument(metavar="FORMAT", help="Format of the runs, one of those named above.")
    ],
    path: Annotated[Path, typer.Argument(help="File or folder to read.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write (default: records.jsonl.gz).")
    ] = None,
) -> None:
    """Read runs of another format and write them as records; bad rows are refused."""
    from advisor.records import write_records
    from advisor.records.importers.formats import read

    records = read(fmt, path)
    target = out or Path("records.jsonl.gz")
    write_records(target, records)
    counts = Counter(record.status for record in records)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    typer.echo(f"{len(records)} runs ({told}) in {target}")


_HELP = "Read runs of another format and write them as records. Formats: " + "; ".join(
    f"{name} ({about})" for name, (_, about) in FORMATS.items()
)
