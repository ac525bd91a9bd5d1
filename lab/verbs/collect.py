"""``advisor collect``: make labelled runs on this machine, or pack those that were made."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from advisor.ask import HOURS, option
from advisor.errors import UsageError

JOURNAL = "runs.jsonl"
PRICES = "prices.json"
_PLANS = ("seconds", "minutes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Train many small jobs under resource limits, and record what each took.

    The same command continues where it stopped. Quotas and network limits need root: without
    them those runs are left out.
    """

    # fmt: off
    out: Path = option("Folder of the runs, made if missing; with --describe also a .jsonl.gz.",
        default=...)
    limit: int | None = option("Maximum number of runs to make.", min=1)
    hours: float | None = option("Start no further run after this time.", HOURS)
    only: list[str] | None = option("Pattern of run keys, e.g. 'full/mlp-*'; repeatable.")
    plan: str = option("Plan: seconds (many small jobs), or minutes (jobs of a minute or more on "
        "one core, of which a partial run sees at most 5 %).", default="seconds")
    cap_s: float | None = option("Maximum time of a run, in seconds, after which it is cut short "
        "(default: 25, or 3600 for jobs of minutes).")
    attempts: int = option("Maximum number of attempts at a noisy run.", default=3, min=1)
    nice: int = option("Scheduling priority of the runs; a larger value gives way to other "
        "programs.", default=0, min=0, max=19)
    pack: Path | None = option("Only write the runs so far to this .jsonl.gz.")
    describe: bool = option("Only count the runs so far, and show their noise.", default=False)
    # fmt: on

    def __call__(self) -> None:
        if any(time is not None and time <= 0 for time in (self.hours, self.cap_s)):
            raise UsageError(
                f"times must be positive, got hours={self.hours}, cap_s={self.cap_s}",
                hint="try --hours 1",
            )
        if self.describe:
            _describe(self.out)
            return
        if self.pack is not None:
            _pack(self.out / JOURNAL, self.pack)
            return
        if self.plan not in _PLANS:
            raise UsageError(f"no plan named {self.plan!r}", hint=f"one of: {', '.join(_PLANS)}")
        options = ["--out", str(self.out), "--plan", self.plan, "--nice", str(self.nice)]
        options += [] if self.cap_s is None else ["--cap-s", str(self.cap_s)]
        options += ["--prices", str(_prices(self.out))]
        _describe_machine(self.out)
        options += ["--attempts", str(self.attempts)]
        options += [word for pattern in self.only or () for word in ("--only", pattern)]
        options += [] if self.limit is None else ["--limit", str(self.limit)]
        options += [] if self.hours is None else ["--hours", str(self.hours)]
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


VERB = Collect
