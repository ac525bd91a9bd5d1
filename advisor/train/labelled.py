"""The labelled runs that predictors learn from: those that ship, and the user's own.

The physics of ``advisor recommend`` for collected runs with several threads.

With one thread such a run takes the anchor's time over the share of a core: any model of a
device says so, since both are the same silicon. With several it is not so simple: what a second
core adds depends on how much of a step is arithmetic and how much is memory traffic. What is
learned must be left over from the very physics that is corrected later, so these runs get the
device model's word.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.collectors import bounded
from advisor.collectors.derive import local_folders
from advisor.errors import RunError, UsageError
from advisor.jobs import FILE_NAME, file_in
from advisor.machines import device_parameters, processor
from advisor.planners.core import Operator, OperatorKind, Operators, Phase, Work
from advisor.planners.step import step_time
from advisor.records import (
    COUNTED,
    JobFacts,
    RunRecord,
    hosts_of,
    left_aside,
    note_table,
    read_runs_as,
    to_line,
)

AUTO: Final = "auto"
_COLLECTED: Final = "minicloud"  # what ``advisor collect`` made: a format and a source
_PACKED: Final = ("runs.jsonl.gz", "runs.jsonl")  # of such a folder


def default_paths() -> list[Path]:
    """Return the packaged runs, and the user's own where there are some."""
    own = (file_in(folder) for folder in local_folders())
    return [*_packaged(), *(file for file in own if file is not None)]


def _packaged() -> list[Path]:
    return [data.root("datasets") / name for name in ("runs", "minutes")]


def is_own(records: Sequence[RunRecord]) -> NDArray[np.bool_]:
    """Return which runs are not among those that ship, shape (n,): these were not yet heard."""
    packaged = {to_line(one) for some in read_each(_packaged()).values() for one in some}
    return np.array([to_line(record) not in packaged for record in records])


def left_out_notes(paths: Sequence[Path] | None, fmt: str = AUTO) -> list[str]:
    """Return why notes in the journals among the files are not learned from."""
    journals = [path for path in paths or default_paths() if _format(path, fmt) == "journal"]
    return [line for path in journals if path.exists() for line in left_aside(path)]


def read_runs(paths: Sequence[Path] | None, fmt: str = AUTO) -> list[RunRecord]:
    """Read the runs to learn from.

    Raises UsageError if there are none; RunError if a row makes no sense, or two files have a run
    of the same ``record_id``.

    ``paths``: files or folders; None takes ``default_paths()``.
    """
    return [record for records in read_each(paths, fmt).values() for record in records]


def read_each(paths: Sequence[Path] | None, fmt: str = AUTO) -> dict[Path, list[RunRecord]]:
    """Read the same by file or folder; raises as ``read_runs``."""
    places = list(paths) if paths else default_paths()
    found: dict[str, RunRecord] = {}
    each: dict[Path, list[RunRecord]] = {}
    for path in places:
        for record in with_device_physics(read_runs_as(_format(path, fmt), path), path):
            if record.record_id in found:
                raise RunError(
                    f"{path}: record_id: {record.record_id!r} is in the data twice",
                    hint="name each file once, and give every run its own record_id",
                )
            found[record.record_id] = record
            each.setdefault(path, []).append(record)
    if not found:
        raise UsageError(f"no runs in {', '.join(map(str, places))}", hint="see --data")
    for source in {record.source for record in found.values()}:
        lines = (to_line(record) for record in found.values() if record.source == source)
        note_table(f"runs of {source}", lines)
    return each


def run_files(path: Path) -> list[Path]:
    """Return the files of runs in a folder, or the file itself.

    Raises UsageError if there is none.
    """
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UsageError(f"no .jsonl or .jsonl.gz in {path}", hint="see --data")
    return [file.resolve() for file in files]


def _format(path: Path, fmt: str) -> str:
    """Return the format that is meant: collected runs name their schema in every row."""
    if fmt != AUTO:
        return fmt
    if path.name == FILE_NAME:
        return "journal"
    file = path
    if path.is_dir():
        file = next((path / n for n in _PACKED if (path / n).is_file()), path)
    if not file.is_file():
        return "records"
    try:
        with (
            gzip.open(file, "rt") if file.suffix == ".gz" else file.open(encoding="utf-8") as rows
        ):
            first = bounded.parse_json(rows.readline())
    except (OSError, EOFError, ValueError):
        return "records"  # its reader says what is wrong with it
    is_collected = isinstance(first, dict) and str(first.get("schema")).startswith(_COLLECTED)
    return _COLLECTED if is_collected else "records"


def with_device_physics(records: Sequence[RunRecord], path: Path) -> list[RunRecord]:
    """Return collected runs with ``analytic_time_s`` as the device model has it.

    Parameters
    ----------
    records : sequence of RunRecord
        As ``records.importers`` reads them; others, and runs with one thread a machine, are
        returned as they are.
    path : Path
        Of the runs: ``host.json`` beside them describes the machine that they were made on, or
        several files each of one. What was made on no such machine is returned as it is, and
        physics is the share of the cores.
    """
    is_collected = any(record.source == _COLLECTED for record in records)
    hosts = hosts_of(path) if is_collected else {}
    if not hosts:
        return list(records)
    constants = device_parameters()
    speedups: dict[tuple[str, int], float] = {}
    found = []
    for record in records:
        threads = int(float(record.layout.get("threads", 1.0)))
        host = hosts.get(str(record.facts.get("machine", "")))
        if (
            record.source != _COLLECTED
            or threads < 2
            or record.anchor is None
            or record.instances > 1
            or host is None
        ):
            found.append(record)
            continue
        key = (record.job.job_id, threads)
        if key not in speedups:
            work = counted_work(record.job)
            pair = [processor(host, n) for n in (1, threads)]
            columns = step_time(work, pair, [work.micro_batch], constants)
            one, several = (columns.micro_batch_s[:, 0] + columns.optimizer_s).tolist()
            speedups[key] = one / several
        found.append(_carried(record, speedups[key], threads))
    return found


def _carried(record: RunRecord, speedup: float, threads: int) -> RunRecord:
    """Return the record with the anchor's time over what its threads and its share of time give.

    Threads that share fewer cores than they are run one after the other: they add nothing.
    """
    assert record.anchor is not None  # the caller's condition
    machines = record.configuration[0]
    granted = float(machines.vcpus or threads)
    cores = float(machines.facts.get("cores", threads))
    rate = granted if cores < threads else speedup * granted / threads
    facts = {**record.facts, "analytic_time_s": record.anchor.time_s / max(rate, 1e-9)}
    return replace(record, facts=facts)


def counted_work(job: JobFacts) -> Work:
    """Return the counted step as work: an operator for each phase and class."""
    facts = {name: float(v) for name, v in job.facts.items() if not isinstance(v, str)}
    operators = []
    phases: tuple[Phase, ...] = get_args(Phase)
    kinds: tuple[OperatorKind, ...] = get_args(OperatorKind)
    for phase in phases:
        for kind in kinds:
            calls, flop, moved = (facts.get(f"{what}_{phase}_{kind}", 0.0) for what in COUNTED)
            if calls > 0:
                operators.append(Operator(
                    name=kind, kind="optimizer" if phase == "optimizer" else kind, phase=phase,
                    count=calls, flop=flop, bytes=moved,
                ))  # fmt: skip
    batch = max(round(facts.get("batch", 1.0)), 1)
    parameters = int(facts.get("parameters", 0.0))
    return Work(
        operators=Operators.of(operators),
        micro_batch=batch,
        parameters=parameters,
        trainable_parameters=parameters,
        parameter_bytes=int(facts.get("parameter_bytes", 4.0 * parameters)),
        optimizer_state_bytes=int(facts.get("optimizer_state_bytes", 0.0)),
        saved_bytes_per_sample=facts.get("saved_bytes", 0.0) / batch,
    )
