"""Score any table in the form of a known suite: ``advisor validate TABLE``.

The suite is told by the table's columns. Suites of (device, job) throughputs and of layers are
predicted with each device of the table left out, from the table's other rows and from the suite's
published rows; the others are scored by their protocol with the table in place of the published
one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pandas as pd

from advisor.errors import ModelError, UsageError
from advisor.lab.data import (
    CAMPAIGNS,
    GAVEL,
    LAMBDA,
    LAYERS,
    LAYOUTS,
    MLPERF,
    NEUSIGHT,
    NVIDIA_EXAMPLES,
    PARCAE,
    SIA,
    Dataset,
)
from advisor.lab.data.dataset import PublishedTable, read_frame, standing_for
from advisor.lab.score import load
from advisor.lab.score.described import read_layers
from advisor.lab.score.devices import lambda_cells, mlperf_cells, one_device_cells, table_of_cells
from advisor.lab.score.harness import Protocol, Questions, Validation, evaluate
from advisor.lab.score.runs import read_published


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A published suite: a table of a data set, whose ``tell`` columns tell a user's table.

    ``protocol`` is the suite's name where it has none; ``cells`` makes cells (gpu, precision,
    model, throughput, batch, count) of its rows.
    """

    protocol: str
    dataset: Dataset
    table: str
    cells: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    @property
    def form(self) -> PublishedTable:
        return self.dataset.tables[self.table]


def gavel_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return samples/s of one GPU by job; the suite trains in fp32."""
    rows = rows[(rows["accelerators"] == 1) & (rows["samples_per_s"] > 0)]
    named = {"job": "model", "samples_per_s": "units_per_s"}
    return one_device_cells(rows.rename(columns=named).assign(precision="fp32"))


def nvidia_example_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return throughput of one GPU by (page, batch, sequence, metric)."""
    rows = rows[(rows["accelerators"] == 1) & (rows["value"] > 0)]
    rows = rows[rows["metric"].str.contains("throughput|/s", case=False)]
    job = rows["page"] + " " + rows["batch"].astype(str) + " " + rows["sequence"].astype(str)
    memory = rows["accelerator_memory_gb"].map(lambda gb: "" if pd.isna(gb) else f"-{gb:.0f}GB")
    return one_device_cells(
        rows.assign(
            model=job,
            accelerator=rows["accelerator"] + memory,
            precision=rows["precision"].map({"mixed": "fp16"}).fillna("fp32"),
            units_per_s=rows["value"],
            batch_per_accelerator=1.0,  # batches of this suite are texts
        )
    )


SUITES: Final = (
    Suite(protocol="gpu", dataset=LAMBDA, table="throughputs", cells=lambda_cells),
    Suite(protocol="gpu-mlperf", dataset=MLPERF, table="entries", cells=mlperf_cells),
    Suite(protocol="gavel", dataset=GAVEL, table="throughputs", cells=gavel_cells),
    Suite(
        protocol="nvidia-dle", dataset=NVIDIA_EXAMPLES, table="throughputs",
        cells=nvidia_example_cells,
    ),
    Suite(protocol="layers", dataset=LAYERS, table="profiles"),
    Suite(protocol="neusight", dataset=NEUSIGHT, table="latencies"),
    Suite(protocol="layouts", dataset=LAYOUTS, table="runs"),
    Suite(protocol="scaling", dataset=SIA, table="placements"),
    Suite(protocol="pipeline", dataset=PARCAE, table="steps"),
    Suite(protocol="campaigns", dataset=CAMPAIGNS, table="runs"),
)  # fmt: skip


def asked_table(path: Path, data: Path | None) -> tuple[Protocol, Questions]:
    """Return the question that a CSV table puts, by the suite that its columns tell.

    Without ``data``, published measurements laid out like ``shared/data``, the table stands alone.

    Raises UsageError if the file cannot be read, or its columns are of no known suite. Raises
    ModelError if a row is impossible, or nothing can be scored.
    """
    rows = _read(path)
    suite = _suite(path, rows)
    if suite.cells is None:
        return _by_protocol(suite, path, data)
    known = None
    if data is not None and suite.dataset.has(suite.table, data):
        known = suite.cells(suite.dataset.read(suite.table, data))
    try:
        cells = suite.cells(suite.form.normalise(rows, path))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(
            f"{path}: {error}", hint=f"the form is that of {suite.form.published}"
        ) from error
    protocol, asked = table_of_cells(suite.protocol, cells, known)
    beside = "the suite's published rows" if known is not None else "the table's other rows alone"
    return protocol, replace(asked, notes=(f"known beside: {beside}",))


def score_table(path: Path, data: Path | None) -> Validation:
    """Score the product on a table.

    Raises UsageError, ModelError as ``asked_table``.
    """
    protocol, rows = asked_table(path, data)
    return evaluate(protocol, rows, protocol.answer(rows))


def _read(path: Path) -> pd.DataFrame:
    try:
        return read_frame(path)
    except ModelError as error:
        raise UsageError(
            f"cannot read the table {path}: {error}", hint="name a CSV file with a header"
        ) from error


def _suite(path: Path, rows: pd.DataFrame) -> Suite:
    columns = set(rows.columns)
    for suite in SUITES:
        if suite.form.tell <= columns or 0 < len(columns.intersection(suite.form.ours)) == len(
            suite.form.ours
        ):
            return suite
    close = max(SUITES, key=lambda suite: len(suite.form.tell & columns))
    lacking = ", ".join(sorted(close.form.tell - columns))
    raise UsageError(
        f"the columns of {path} are of no known suite",
        hint=f"closest is {close.form.published}, which also has: {lacking}",
    )


def _by_protocol(suite: Suite, path: Path, data: Path | None) -> tuple[Protocol, Questions]:
    """Return the suite's protocol on measurements in which the table takes its place."""
    protocol = load(suite.protocol)
    if suite.protocol == "layers":
        return protocol, read_layers(path, data)
    if suite.protocol == "campaigns":
        return protocol, read_published(path, is_own=False)
    with tempfile.TemporaryDirectory() as nothing, standing_for(suite.form.published, path):
        return protocol, protocol.rows(data if data is not None else Path(nothing))
