"""The accuracy gate: a protocol run again must not err by half a point more than is stored.

Looked at are the mean and the median error of all rows, how far the coverage of the intervals is
from what they promise, and every figure that the README shows. More than ``POINT`` for the worse
fails, and so do fewer rows: an error can be lowered by leaving rows out. Figures that were
computed on other tables are not comparable, which is an error too: store them again.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from advisor import data
from advisor.errors import AbsentDataError, AdvisorError
from advisor.lab import score
from advisor.lab.score.figures import shown_values
from advisor.lab.score.stored import Stored
from advisor.records import reads

POINT: Final = 0.005  # half a percentage point
LEAST_ROWS: Final = 5000  # that all protocols together score on what comes with the package
# What intervals promise: 90 %, but where a protocol asks for others.
PROMISED: Final = {"spot": 0.8}
USUAL_PROMISE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRun:
    """A protocol run now; without a record it could not run, and ``problem`` says why.

    ``is_absent``: because its measurements are not here.
    """

    protocol: str
    record: Mapping[str, Any] | None
    inputs: Mapping[str, str]
    cpu_s: float
    problem: str = ""
    is_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the gate says of one protocol: failures, and why nothing could be compared."""

    protocol: str
    failures: tuple[str, ...] = ()
    remark: str = ""
    rows: int = 0


def measure(protocol: str, *, is_blind: bool = False) -> ProtocolRun:
    """Run a protocol on the measurements that are here, and note what it read."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    record, problem, is_absent = None, "", False
    with reads.tables_read() as inputs:
        try:
            found = score.run(protocol, data.measurements(), is_blind=is_blind)
            record = found.to_record()
        except AdvisorError as error:
            problem, is_absent = str(error), isinstance(error, AbsentDataError)
        except Exception as error:  # a defect of one protocol: the others are still run
            problem = f"{type(error).__name__}: {error}"
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ProtocolRun(
        protocol=protocol, record=record, inputs=inputs, cpu_s=spent, problem=problem,
        is_absent=is_absent,
    )  # fmt: skip


def measure_all(
    protocols: Sequence[str], *, processes: int = 2, is_blind: bool = False
) -> Iterator[ProtocolRun]:
    """Run protocols side by side, each on one thread in a process of its own."""
    data.use_one()  # the processes are started afresh and load their libraries then
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        started = [pool.submit(measure, name, is_blind=is_blind) for name in protocols]
        for future in started:
            yield future.result()


def judge(stored: Stored, now: ProtocolRun) -> Judgement:
    """Compare a protocol run now with its stored figures."""
    name = now.protocol
    if now.record is None:
        if now.is_absent:
            return Judgement(protocol=name, remark=now.problem)
        return Judgement(protocol=name, failures=(f"does not run any more: {now.problem}",))
    rows = int(now.record["rows"])
    absent = sorted(set(stored.inputs) - set(now.inputs))
    if absent:
        return Judgement(protocol=name, rows=rows, remark=f"not here: {', '.join(absent)}")
    others = [k for k, digest in now.inputs.items() if stored.inputs.get(k) != digest]
    if others:
        told = f"other rows in {', '.join(sorted(others))}: store the figures again, with a reason"
        return Judgement(protocol=name, rows=rows, failures=(told,))
    return Judgement(protocol=name, rows=rows, failures=tuple(worsened(stored.record, now.record)))


def worsened(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for every figure that is worse than stored by more than ``POINT``."""
    lines = []
    if now["rows"] < stored["rows"]:
        lines.append(f"rows: {now['rows']} are scored, {stored['rows']} were")
    after = _figures(now)
    for name, (before, distance) in _figures(stored).items():
        if name not in after:
            lines.append(f"{name}: is gone, was {before:.4g}")
        elif after[name][1] > distance + POINT + 1e-9:
            lines.append(f"{name}: {after[name][0]:.4g}, stored {before:.4g}")
    return lines


def _figures(record: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return name -> (value, how far it is from perfect) of every figure that is watched."""
    overall, protocol = record["overall"], record["protocol"]
    found = {
        name: (overall[key], overall[key])
        for name, key in (("mean", "mape_fraction"), ("median", "median_ape_fraction"))
    }
    promised = PROMISED.get(protocol, USUAL_PROMISE)
    if overall.get("coverage") is not None:
        found["coverage"] = (overall["coverage"], abs(overall["coverage"] - promised))
    for name, kind, value in shown_values(record):
        if kind != "count":
            found[name] = (value, abs(value - promised) if kind == "coverage" else value)
    return found


def unexplained(before: Stored, now: Stored) -> list[str]:
    """Return what is wrong with stored figures that took the place of others.

    Worse figures need a reason of their own: the one of the former figures does not explain them.
    """
    worse = worsened(before.record, now.record)
    if worse and now.reason.strip() == before.reason.strip():
        return [f"{line} - with the reason of the former figures" for line in worse]
    return []
