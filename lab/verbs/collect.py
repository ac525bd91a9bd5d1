"""``advisor collect``: make labelled runs on this machine, or pack those that were made."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.options import HOURS, quantity
from advisor.errors import UsageError

JOURNAL = "runs.jsonl"
PRICES = "prices.json"
_PLANS = ("seconds", "minutes")


def command(
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder of the runs, made if missing; with --describe also a .jsonl.gz."
        ),
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of runs to make.")
    ] = None,
    hours: Annotated[
        float | None, quantity(HOURS, "--hours", help="Start no further run after this time.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Pattern of run keys, e.g. 'full/mlp-*'; repeatable.")
    ] = None,
    plan: Annotated[
        str,
        typer.Option(
            help="Plan: seconds (many small jobs), or minutes (jobs of a minute or more on one "
            "core, of which a partial run sees at most 5 %)."
        ),
    ] = "seconds",
    cap_s: Annotated[
        float | None,
        typer.Option(
            help="Maximum time of a run, in seconds, after which it is cut short (default: "
            "25, or 3600 for jobs of minutes)."
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Maximum number of attempts at a noisy run.")
    ] = 3,
    nice: Annotated[
        int,
        typer.Option(
            min=0,
            max=19,
            help="Scheduling priority of the runs; a larger value gives way to other programs.",
        ),
    ] = 0,
    pack: Annotated[
        Path | None, typer.Option(help="Only write the runs so far to this .jsonl.gz.")
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Only count the runs so far, and show their noise.")
    ] = False,
) -> None:
    """Train many small jobs under resource limits, and record what each took.

    The same command continues where it stopped. Quotas and network limits need root: without
    them those runs are left out.
    """
    if (hours is not None and hours <= 0) or (cap_s is not None and cap_s <= 0):
        raise UsageError(
            f"times must be positive, got hours={hours}, cap_s={cap_s}", hint="try --hours 1"
        )
    if describe:
        _describe(out)
        return
    if pack is not None:
        _pack(out / JOURNAL, pack)
        return
    if plan not in _PLANS:
        raise UsageError(f"no plan named {plan!r}", hint=f"one of: {', '.join(_PLANS)}")
    options = ["--out", str(out), "--plan", plan, "--nice", str(nice)]
    options += [] if cap_s is None else ["--cap-s", str(cap_s)]
    options += ["--prices", str(_prices(out))]
    _describe_machine(out)
    options += ["--attempts", str(attempts)]
    options += [option for pattern in only or () for option in ("--only", pattern)]
    options += [] if limit is None else ["--limit", str(limit)]
    options += [] if hours is None else ["--hours", str(hours)]
    # In place of this process: whoever ends the command ends the collection with it.
    program = [sys.executable, "-m", "advisor.lab.minicloud", *options]
    os.execv(sys.executable, program)


def _prices(out: Path) -> Path:
    """Return the file of prices of a collection, written when it begins and kept."""
    from advisor.catalogue import Catalogue
    from advisor.lab.data.miniature import write_prices

    path = out / PRICES
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_prices(path, Catalogue.load())
    return path


def _describe_machine(out: Path) -> None:
    """Write what this machine is and sustains beside its runs, once: what physics goes by."""
    import json
    from dataclasses import asdict
    from importlib.metadata import version

    from advisor.collectors import atomic
    from advisor.collectors.watch import cached_or_measured, describe_host
    from advisor.lab.minicloud.collect import this_machine
    from advisor.records.importers.minicloud import HOSTS_FILES, hosts_of

    machine = this_machine()
    measured = None if machine in hosts_of(out) else cached_or_measured()
    if measured is None:
        return
    host = {key: value for key, value in asdict(describe_host(benchmark=measured)).items()
            if key not in ("gpus", "sheets")} | {"torch_version": version("torch")}  # fmt: skip
    number = len(list(out.glob(HOSTS_FILES))) + 1
    name = "host.json" if number == 1 else f"host-{number}.json"
    atomic.write_text(out / name, json.dumps({"machine": machine, **host}, indent=1) + "\n")


def _describe(path: Path) -> None:
    from advisor.lab.minicloud import summary
    from advisor.records.collected import Journal, unpack

    journal = path / JOURNAL if path.is_dir() else path
    if not journal.exists():
        raise UsageError(f"there are no runs at {journal}", hint="make some: advisor collect")
    is_packed = journal.suffix == ".gz"
    typer.echo(summary.describe(unpack(journal) if is_packed else Journal(journal).rows()))


def _pack(journal: Path, target: Path) -> None:
    from advisor.records.collected import Journal, pack, tells_nothing

    if not journal.exists():
        raise UsageError(f"there are no runs at {journal}", hint="make some: advisor collect")
    if not target.name.endswith(".jsonl.gz"):
        raise UsageError(f"cannot pack runs into {target.name}", hint="name a .jsonl.gz file")
    source = Journal(journal)
    rows = list(source.rows())
    telling = [row for row in rows if not tells_nothing(row)]
    pack(telling, target)
    typer.echo(
        f"{len(telling)} records in {target}; left out: {len(rows) - len(telling)} that others"
        f" kept from ending, {source.damaged()} damaged lines",
        err=True,
    )
