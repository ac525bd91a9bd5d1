"""TrimTuner: TensorFlow parameter servers on AWS t2 clusters, trained on part of the data first.

``cnn.csv`` and ``rnn.csv`` (pedrogbmendes/TrimTuner, MIT). Runs were cut at about 600 s: those
that reached it are censored. The run on the smallest training set on the same cluster is the
anchor: a partial run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from advisor.errors import RunError
from advisor.records import AnchorRun, Instances, JobFacts, RunRecord
from advisor.records.importers.aws import Price, aws_machines, read_prices
from advisor.records.importers.rows import Repeats, Row, located_records, read_rows

CAP_S: Final = 600.0  # runs were stopped at the first check after it (SOURCE.md)
_COLUMNS: Final = (
    "n_workers", "learning_rate", "batch_size", "synchronism", "training_time", "n_ps",
    "vm_flavor", "training_set_size", "total_iterations",
)  # fmt: skip


def read(path: Path) -> list[RunRecord]:
    """Read the tables of a folder, or one of them.

    Raises RunError naming file, row and column of a bad value.
    """
    files = [path] if path.is_file() else sorted(path.glob("?nn.csv"))
    if not files:
        raise RunError(f"no cnn.csv or rnn.csv in {path}", hint="name TrimTuner's folder")
    prices = read_prices(path)
    return [record for file in files for record in _read_network(file, prices)]


def _read_network(path: Path, prices: Mapping[str, Price]) -> list[RunRecord]:
    rows = read_rows(path, _COLUMNS)
    smallest = min((row.positive("training_set_size") for row in rows), default=0.0)
    partial = {_cell(row): row for row in rows if row.positive("training_set_size") == smallest}
    repeats = Repeats()
    return located_records(
        rows, lambda row: _record(row, partial.get(_cell(row)), repeats, prices)
    )


def _cell(row: Row) -> tuple[str, ...]:
    columns = ("vm_flavor", "n_workers", "learning_rate", "batch_size", "synchronism")
    return tuple(row.text(c) for c in columns)


def _record(
    row: Row, partial: Row | None, repeats: Repeats, prices: Mapping[str, Price]
) -> RunRecord:
    network = row.path.stem
    time_s = row.positive("training_time")
    samples = row.positive("training_set_size")
    machines = _machines(row, prices)
    anchor = None
    if partial is not None and partial is not row:
        # The full job by proportion: the partial run saw a share of the samples.
        share = partial.positive("training_set_size") / samples
        anchor = AnchorRun(machines=machines, time_s=partial.positive("training_time") / share)
    batch, rate = row.text("batch_size"), row.text("learning_rate")
    cell = f"trimtuner/{network}/{'/'.join(_cell(row))}/{samples:g}"
    replicate = repeats.next(cell)
    return RunRecord(
        record_id=f"{cell}/{replicate}",
        source="trimtuner",
        job=JobFacts(
            job_id=f"{network}-b{batch}-lr{rate}-{samples:g}",
            family=network,
            facts={
                "batch": row.positive("batch_size"),
                "learning_rate": row.positive("learning_rate"),
                "samples": samples,
                "steps": row.positive("total_iterations"),
            },
        ),
        configuration=(machines,),
        layout={
            "workers": row.positive("n_workers"),
            "servers": row.positive("n_ps"),
            "synchronism": row.text("synchronism"),
        },
        time_s=time_s,
        time_kind="job",
        status="censored" if time_s >= CAP_S else "ok",
        replicate=replicate,
        anchor=anchor,
    )


def _machines(row: Row, prices: Mapping[str, Price]) -> Instances:
    name = row.text("vm_flavor")
    # One worker a virtual CPU (SOURCE.md): t2.small has 1, t2.2xlarge 8.
    vcpus = {"t2.small": 1, "t2.medium": 2, "t2.xlarge": 4, "t2.2xlarge": 8}.get(name, 1)
    return aws_machines(name, prices, count=max(1, -(-row.count("n_workers") // vcpus)))
