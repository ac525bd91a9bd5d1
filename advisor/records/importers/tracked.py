"""What the importers of experiment trackers share: a run of one machine with its readings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records import Fact, Instances, JobFacts, ResourceSeries, RunRecord
from advisor.records.nouns import Status

# Settings of a job that mean the same to every tracker -> our fact.
_SETTINGS: Final = {
    "batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "train_batch_size": "batch",
    "learning_rate": "learning_rate",
    "lr": "learning_rate",
    "epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "parameters": "parameters",
}


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    RunError
        If the file cannot be read or holds something else.
    """
    try:
        value = bounded.read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}", hint="export the run again") from error
    if not isinstance(value, dict):
        raise RunError(f"{path}: not a JSON object", hint="export the run again")
    return value


def positive(value: object, path: Path, column: str) -> float:
    """Return a positive finite number.

    Raises
    ------
    RunError
        Naming file and column.
    """
    number = real(value)
    if number is None or number <= 0:
        raise RunError(f"{path}: {column}: {value!r} is not a positive number", hint="see docs")
    return number


def real(value: object) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def job_facts(settings: Mapping[str, object]) -> dict[str, Fact]:
    """Return the settings that the models know, under our names."""
    facts: dict[str, Fact] = {}
    for theirs, ours in _SETTINGS.items():
        number = real(settings.get(theirs))
        if number is not None and number > 0:
            facts.setdefault(ours, number)
    return facts


def run_record(
    *,
    source: str,
    run_id: str,
    family: str,
    settings: Mapping[str, object],
    machines: Instances,
    time_s: float | None,
    status: Status,
    series: ResourceSeries | None = None,
    facts: Mapping[str, Fact] | None = None,
) -> RunRecord:
    """Return the record of a tracked run: its job goes by program and settings."""
    known = job_facts(settings)
    name = "-".join([family, *(f"{k}{v:g}" for k, v in sorted(known.items()) if k != "steps")])
    return RunRecord(
        record_id=f"{source}/{run_id}",
        source=source,
        job=JobFacts(job_id=name, family=family, facts=known),
        configuration=(machines,),
        time_s=time_s,
        time_kind="job",
        status=status,
        series=(series,) if series is not None else (),
        facts=facts or {},
    )
