"""The accuracy gate: what a protocol gives now must not be worse than what is stored.

Looked at are the rows; mean, median, tail, coverage and width over all rows; the errors of every
group; every figure that a protocol declares a sense of (``harness.Protocol.senses``: less, more or
as near as can be to a number is better; one more or less of a count); and what ``recommend``
tells of errors, which must be true both ways. ``POINT`` more for the worse fails, and so
do fewer rows: an error can be lowered by leaving rows out. Figures that were computed on other
tables are not comparable, which is an error too: store them again. What ships must be there.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from advisor import data
from advisor.catalogue import Catalogue
from advisor.errors import AbsentDataError, AdvisorError
from advisor.lab import score
from advisor.lab.data.dataset import packaged_alone
from advisor.lab.score.figures import SHOWN
from advisor.lab.score.scores import Sense
from advisor.lab.score.stored import Stored
from advisor.rank.changes import ASKED, errors_told
from advisor.records import reads

POINT: Final = 0.005  # half a percentage point; as a share of what is larger than 1
# p90 and widths are of few rows or of long tails: besides ``POINT``, this share of themselves.
TAIL: Final = 0.05
# A group is few rows: an error there may grow by so much, and by this share of itself.
GROUP, GROUP_SHARE = 0.02, 0.1
STALE: Final = 0.05  # by which what is told of errors may be too large
_WHOLE_RUNS: Final = "campaigns"  # whose overall error is told of whole jobs
LEAST_ROWS: Final = 8000  # that all protocols together score on what comes with the package


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
    """Run a protocol on the measurements that are here, and note what it read.

    What ships as it ships (``score.SHIPPED``) and samples are run on what ships.
    """
    folder = data.measurements() if protocol in score.PROTOCOLS else packaged_alone()
    before = resource.getrusage(resource.RUSAGE_SELF)
    record, problem, is_absent = None, "", False
    with reads.tables_read() as inputs:
        try:
            found = score.run(protocol, folder, is_blind=is_blind)
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


def judge(stored: Stored, now: ProtocolRun, *, is_fetched: bool = False) -> Judgement:
    """Compare a protocol run now with its stored figures.

    ``is_fetched``: the figures need what does not ship; only then may it be absent.
    """
    name, record = now.protocol, now.record
    rows = 0 if record is None else int(record["rows"])
    absent = ", ".join(sorted(set(stored.inputs) - set(now.inputs)))
    if is_fetched and (now.is_absent or (record is not None and absent)):
        told = now.problem if record is None else f"not here: {absent}"
        return Judgement(protocol=name, rows=rows, remark=told)
    if record is None:
        why = "cannot be compared, though it ships" if now.is_absent else "does not run any more"
        return Judgement(protocol=name, failures=(f"{why}: {now.problem}",))
    if absent:
        told = f"cannot be compared, though it ships: {absent} is not read"
        return Judgement(protocol=name, rows=rows, failures=(told,))
    others = [k for k, digest in now.inputs.items() if stored.inputs.get(k) != digest]
    if others:
        told = f"other rows in {', '.join(sorted(others))}: store the figures again, with a reason"
        return Judgement(protocol=name, rows=rows, failures=(told,))
    lines = [*worsened(stored.record, record), *untrue(stored.record, record)]
    return Judgement(protocol=name, rows=rows, failures=tuple(lines))


def worsened(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for every figure that is worse than stored by more than it may be."""
    lines = []
    if now["rows"] < stored["rows"]:
        lines.append(f"rows: {now['rows']} are scored, {stored['rows']} were")
    after = _watched(now)
    for name, before in _watched(stored).items():
        if name not in after:
            lines.append(f"{name}: is gone, was {before.value:.4g}")
        elif before.loss(after[name].value) > before.may_lose + 1e-9:
            lines.append(f"{name}: {after[name].value:.4g}, stored {before.value:.4g}")
    return lines + [
        f"{name}: no sense is declared" for name in now["figures"]
        if score.load(now["protocol"]).sense(name) is None
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A figure, what is better of it, and by how much it may be worse."""

    value: float
    sense: Sense
    may_lose: float = 0.0

    def loss(self, now: float) -> float:
        """Return by how much a value is worse."""
        if not isinstance(self.sense, str):
            return abs(now - self.sense) - abs(self.value - self.sense)
        return now - self.value if self.sense in ("lower", "fewer") else self.value - now


def _watched(record: Mapping[str, Any]) -> dict[str, Watched]:
    """Return every figure of a record that is watched."""
    protocol, overall = score.load(record["protocol"]), record["overall"]
    covers = protocol.sense("coverage")
    found = {
        name: _one(overall[key], "lower" if sense is None else sense, share)
        for name, key, sense, share in (
            ("mean", "mape_fraction", None, 0.0),
            ("median", "median_ape_fraction", None, 0.0),
            ("p90", "p90_ape_fraction", None, TAIL),
            ("coverage", "coverage", covers, 0.0),
            ("width", "width", None, TAIL),
        )
        if overall.get(key) is not None
    }
    for name, value in record["figures"].items():
        sense = protocol.sense(name)
        if sense not in (None, "neutral"):
            found[name] = _one(float(value), sense, 0.0)
    # What ships is held still; so is what a table shows.
    shown = {place[1:] for _, place, _ in SHOWN.get(protocol.name, ()) if place[0] == "groups"}
    for group in record["groups"]:
        for word, key in (("mean", "mape_fraction"), ("median", "median_ape_fraction")):
            strict = protocol.name in score.SHIPPED or (group["group"], key) in shown
            loose = GROUP + GROUP_SHARE * group[key]
            may = POINT * max(1.0, group[key]) if strict else loose
            found[f"{group['group']}, {word}"] = Watched(
                value=group[key], sense="lower", may_lose=may
            )
    return found


def _one(value: float, sense: Sense, share: float) -> Watched:
    may = 0.0 if sense in ("fewer", "more") else POINT * max(1.0, abs(value)) + share * abs(value)
    return Watched(value=value, sense=sense, may_lose=may)


def untrue(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what ``recommend`` and ``predict`` tell of errors that is not so, either way."""
    if now["protocol"] not in {protocol for protocol, _ in ASKED.values()} | {_WHOLE_RUNS}:
        return []
    before, after = (_told(record) for record in (stored, now))
    return [
        f"told of {name}: an error of {value:.4g}, it is {after.get(name, math.nan):.4g}"
        for name, value in before.items()
        if not -STALE <= after.get(name, math.nan) - value <= POINT + 1e-9
    ]


def _told(record: Mapping[str, Any]) -> dict[str, float]:
    if record["protocol"] == _WHOLE_RUNS:
        return {"whole jobs": float(record["overall"]["median_ape_fraction"])}
    told = errors_told(record, Catalogue.load(with_overrides=False))
    return {name: error for name, (error, _, _) in told.items()}


def unexplained(before: Stored, now: Stored) -> list[str]:
    """Return what is wrong with stored figures that took the place of others.

    Worse figures need a reason of their own: the one of the former figures does not explain them.
    """
    worse = worsened(before.record, now.record)
    if worse and now.reason.strip() == before.reason.strip():
        return [f"{line} - with the reason of the former figures" for line in worse]
    return []
