"""How far estimates of such jobs were off on such hardware, as it was stored when last measured.

======================================  =================  ========================================
how the job is known                    protocol           asked as
======================================  =================  ========================================
described, never run                    ``described``      a description, the accelerator left out
runs elsewhere were given               ``gpu``            all its other runs, its chip left out
one recording on a GPU                  ``instance``       one run on a T4, the GPU never seen
one recording on a CPU                  none               no data has such jobs on both
======================================  =================  ========================================

What no protocol asks as the user does is said to be unmeasured, in words. The figures ship in
``datasets/accuracy``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from advisor import data
from advisor.catalogue import Catalogue
from advisor.collectors import bounded
from advisor.domain import Candidate, KnownError
from advisor.jobs.job import Job
from advisor.machines.devices import suite_device

_ERROR: Final = ": median APE"
_ROWS: Final = ": rows"
# How a job is known -> the protocol that asks it so, and such jobs in words.
_ASKED: Final[Mapping[str, tuple[str | None, str]]] = {
    "described": ("described", "described jobs"),
    "runs": ("gpu", "jobs known by their runs elsewhere"),
    "on a GPU": ("instance", "jobs with one run on a GPU"),
    "on a CPU": (None, "a job recorded on a CPU"),
    "as a program": (None, "a job of which only the whole run is known"),
}


@cache
def stored_errors(protocol: str) -> tuple[Mapping[str, Any], str]:
    """Return the stored record of a protocol and its day; nothing where none is stored."""
    path = data.root("datasets") / "accuracy" / f"{protocol}.json"
    try:
        record = bounded.read_json(path)
        return record["record"], str(record["day"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, ""


def known_error(job: Job, one: Candidate, catalogue: Catalogue) -> KnownError | None:
    """Return the error of such jobs on accelerators of the candidate's family; None unmeasured.

    Parameters
    ----------
    one : Candidate
        Its first part's accelerators count.
    """
    name = one.configuration.parts[0][0].accelerator if one.configuration.parts else None
    own = None if name is None else catalogue.accelerators.get(name)
    protocol, jobs = _ASKED[how_known(job)]
    if own is None or protocol is None:
        return None
    record, day = stored_errors(protocol)
    found = [
        (error, rows)
        for card, error, rows in _by_card(record)
        if (known := catalogue.accelerators.get(card)) and known.architecture == own.architecture
    ]
    if not found:
        return None
    return KnownError(
        family=f"{own.vendor} {own.architecture}",
        median_ape_fraction=statistics.median(error for error, _ in found),
        accelerators=len(found),
        rows=sum(rows for _, rows in found),
        protocol=protocol,
        day=day,
        jobs=jobs,
    )


def how_known(job: Job) -> str:
    """Return how a job is known, as a key of the table above."""
    if job.actuals:
        return "runs"
    if job.work is None:
        return "as a program"
    if job.measured is None:
        return "described"
    return "on a GPU" if job.measured.device == "cuda" else "on a CPU"


def unmeasured_words(job: Job, one: Candidate) -> str:
    """Return in words what no protocol has measured of such a job on such a machine."""
    name = one.configuration.parts[0][0].accelerator if one.configuration.parts else None
    where = "another machine without an accelerator" if name is None else name
    known = _ASKED[how_known(job)][1]
    return f"How far estimates of {known} are off on {where} is not measured: go by the interval."


def _by_card(record: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Yield accelerators of the catalogue with their error and rows, as a protocol has them."""
    groups = [(suite_device(str(one["group"])), one) for one in record.get("groups", [])]
    if any(device is not None for device, _ in groups):
        for device, one in groups:
            if device is not None:
                yield device.name, float(one["median_ape_fraction"]), int(one["rows"])
        return
    figures = record.get("figures", {})  # groups are models: accelerators stand here
    for name in (one.removesuffix(_ERROR) for one in figures if one.endswith(_ERROR)):
        if name + _ROWS in figures:
            yield name, float(figures[name + _ERROR]), int(figures[name + _ROWS])
