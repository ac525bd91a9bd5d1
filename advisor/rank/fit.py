"""What makes a job fit on given machines: changes in order, what each gains and what it costs.

The job is asked again with one word changed, on the same machines and on machines whose memory has
no end: those say what a change gains, these whether the job then fits. Changes are tried in four
``Degree``s, from those that cost nothing to those that train something else; a later degree is
looked at only where all of the earlier ones together do not suffice.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any, Final

import numpy as np

from advisor.answer import SCHEMA_VERSION, Configuration, Recorded
from advisor.ask import Question, flag_of, layout_space
from advisor.catalogue import OfferFilter, Pricing, TypeColumns
from advisor.errors import AdvisorError, DoesNotRunError, UsageError
from advisor.estimate import (
    SPACE,
    Predictor,
    TimeColumns,
    commands,
    first_look,
    job_of,
    least_step_s,
    machines_asked,
    memory_terms,
    offer_of,
)
from advisor.estimate import refusal as why_refused
from advisor.jobs import Job
from advisor.planners.core import GIB, OFFLOADS, Device, Layout, PlanningError
from advisor.planners.layouts import POSSIBLE
from advisor.planners.step import Devices


class Degree(IntEnum):
    """What a change asks of a job, the least first."""

    FREE = 0  # the same sums in another order
    SLOWER = 1
    ROUNDED = 2  # states and sums of fewer bits
    OTHER = 3  # other weights are trained


# Names of a question, the values that are tried, and what they ask of the job.
_TRIED: Final[tuple[tuple[str, tuple[Any, ...], Degree], ...]] = (
    ("loss", ("chunked", "fused"), Degree.FREE),
    ("optimizer_in_backward", (True,), Degree.FREE),
    ("zero", (1, 2, 3), Degree.FREE),
    ("recompute", ("selective", "full"), Degree.SLOWER),
    ("micro_batch", (1,), Degree.SLOWER),
    ("offload", ("activations", "optimizer", "optimizer,gradients",
                 "optimizer,gradients,parameters"), Degree.SLOWER),
    ("optimizer", ("adamw-8bit", "paged-adamw-8bit"), Degree.ROUNDED),
    ("weights", ("bf16",), Degree.ROUNDED),
    ("lora", (16,), Degree.OTHER),
    ("base_bits", (4,), Degree.OTHER),
)  # fmt: skip
# A gain of less of what is needed is not worth a line.
_LEAST_GAIN: Final = 0.005
_NO_END: Final = 1e18
_MOST_SAMPLES: Final = 1 << 20
_MOST_TOKENS: Final = 1 << 22
_MOST_TYPES: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Recorded):
    """The job with some words changed, and what it takes.

    ``words`` are flags of the command line, ``asks`` what they ask beside time (``fewer bits``,
    ``other weights``; empty for nothing), ``in_stack`` what changes in the command or the files
    that start it; ``needed_gib`` on the fullest device, were there room; ``gained_gib`` and
    ``step_factor`` against the trial before it.
    """

    words: str
    asks: str = ""
    needed_gib: float
    gained_gib: float
    step_time_s: float
    step_factor: float
    fits: bool
    in_stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting(Recorded):
    """Whether a job fits on machines, what makes it fit, and what else would hold it.

    ``fits_probability``: as asked, where less than what is rented must have; None where it fits.
    ``plain``: in the layout that would be fastest, were there room; ``fits``: as asked, in some
    layout, which is ``layout``; ``changes``: to the plain one, in order, after the last of which
    it fits where ``can_fit``;
    ``alone``: every change for itself; ``refused``: words that the stack has not, and why.
    ``smallest``: the cheapest machine that holds the job as asked. ``most_micro_batch`` and
    ``most_sequence`` are with the changes, a sample a micro-batch for the latter; None where it
    does not fit or its samples are no text.
    """

    schema_version: int = SCHEMA_VERSION
    job: str
    machines: str
    devices: int
    device_memory_gib: float
    fits: bool
    fits_probability: float | None = None
    can_fit: bool
    layout: Layout | None
    plain: Trial
    changes: tuple[Trial, ...]
    alone: tuple[Trial, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    smallest: Configuration | None = None
    most_micro_batch: int | None = None
    most_sequence: int | None = None

    @property
    def words(self) -> str:
        """The flags of all changes."""
        return " ".join(one.words for one in self.changes)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question's words as changed, asked of machines with an end and without."""

    given: Mapping[str, Any]
    needed_gib: float
    step_s: float
    fits: bool
    layout: Layout
    job: Job
    columns: TimeColumns


def fitting(
    question: Question, predictor: Predictor, *, gpu: str | None = None, on: str | None = None,
    count: int = 1, job: Job | None = None,
) -> Fitting:  # fmt: skip
    """Return what makes the job of a question fit on ``count`` accelerators, or machines.

    ``job``: the job meant, changed as the question says.

    Raises UsageError if not exactly one of ``gpu`` and ``on`` is given, or the job has no steps;
    DoesNotRunError if it cannot run there for another reason than memory.
    """
    known = job_of(question.job, question.setup, job=job, catalogue=lambda: predictor.catalogue)
    place = machines_asked(predictor, known, on=on, gpu=gpu, count=count)
    return _Tries(question, predictor, place, job).found()


class _Tries:
    """The answers of one question with other words, on one place; each is asked once."""

    def __init__(
        self, question: Question, predictor: Predictor,
        place: tuple[TypeColumns, int, int, str], job: Job | None,
    ) -> None:  # fmt: skip
        self._question, self._predictor, self._job = question, predictor, job
        self._fleet, self._row, self._count, self._where = place
        self._roomy = replace(
            self._fleet,
            devices=Devices(replace(d, memory_bytes=_NO_END) for d in self._fleet.devices),
        )
        self._known: dict[tuple[tuple[str, Any], ...], _Asked | str] = {}

    def found(self) -> Fitting:
        open_ = self._ask({})
        if isinstance(open_, str):
            raise DoesNotRunError(f"it does not run on {self._where}: {open_}", hint=_HINT)
        first = self._plain(open_)
        alone, refused = self._alone(first)
        path = () if first.fits else self._path(first, open_)
        last = path[-1] if path else first
        device = self._fleet.devices[int(self._fleet.device[self._row])]
        return Fitting(
            job=first.job.name, machines=self._where, devices=first.layout.devices,
            device_memory_gib=device.memory_bytes / GIB, fits=open_.fits, can_fit=last.fits,
            fits_probability=None if open_.fits else self._possible(open_.job, device),
            layout=open_.columns.layout(0) if open_.fits else None,
            plain=self._trial(first, first),
            changes=tuple(self._trial(*two) for two in itertools.pairwise((first, *path))),
            alone=tuple(self._trial(first, one) for one in alone), refused=refused,
            smallest=self._smallest(first.job),
            most_micro_batch=self._most("micro_batch", last, 1, _MOST_SAMPLES),
            most_sequence=self._most("sequence", last, 128, _MOST_TOKENS),
        )  # fmt: skip

    def _possible(self, job: Job, device: Device) -> float:
        """Return how likely the job fits as asked, 0 where less than even."""
        space = replace(layout_space(self._question.layout, SPACE) or SPACE, sureness=POSSIBLE)
        columns = self._columns(job, self._fleet, space)
        if columns.status[0]:
            return 0.0
        case = self._predictor.case(job, fleet=self._fleet, space=space)
        held = memory_terms(case, columns, 0, columns.layout(0), device)
        return float(held.get("fits_probability", 0.0))

    def _ask(self, given: Mapping[str, Any]) -> _Asked | str:
        """Return the answer with some words changed, or in words why there is none."""
        key = tuple(sorted(given.items()))
        if key not in self._known:
            try:
                self._known[key] = self._answer(given)
            except (AdvisorError, PlanningError) as error:
                self._known[key] = str(error)
        return self._known[key]

    def _answer(self, given: Mapping[str, Any]) -> _Asked | str:
        asked = self._read(given)
        job = job_of(asked.job, asked.setup, job=self._job,
                     catalogue=lambda: self._predictor.catalogue)  # fmt: skip
        if job.work is None:
            raise UsageError(f"{job.name} has no training steps", hint="profile a training script")
        space = layout_space(asked.layout, SPACE)
        there, roomy = (self._columns(job, one, space) for one in (self._fleet, self._roomy))
        if roomy.status[0]:
            case = self._predictor.case(job, fleet=self._roomy, space=space)
            return str(why_refused(case, roomy, 0))
        return _Asked(
            given=given, needed_gib=float(roomy.memory_bytes[0]) / GIB,
            step_s=float((roomy if there.status[0] else there).step_s[0]),
            fits=not there.status[0], layout=roomy.layout(0), job=job, columns=there,
        )  # fmt: skip

    def _read(self, given: Mapping[str, Any]) -> Question:
        said = {k: v for k, v in self._question.to_record().items() if k != "schema_version"}
        return Question.read(said | dict(given), are_flags=True)

    def _columns(self, job: Job, fleet: TypeColumns, space: Any) -> TimeColumns:
        return self._predictor.step_columns(
            job, np.array([self._row]), np.array([self._count]), fleet=fleet, space=space
        )

    def _plain(self, open_: _Asked) -> _Asked:
        """Return the job in its fastest layout, were there room: what nobody asked for is fixed.

        A layout that is left open would be searched for what fits, and say nothing of it.
        """
        pins, said = _layout_words(open_.layout), self._question.layout.fixed
        open_names = {name: value for name, value in pins.items() if name not in said}
        for names in (open_names, {k: v for k, v in open_names.items() if k in _OF_ANY_JOB}):
            found = self._ask(names)
            if not isinstance(found, str):
                return found
        return open_

    def _alone(self, first: _Asked) -> tuple[list[_Asked], dict[str, str]]:
        """Return every change for itself that gains something, and what is not possible."""
        found, refused = [], {}
        for name, values, _ in _TRIED:
            best = first
            for value in values:
                one = self._with(first, name, value)
                if isinstance(one, str):
                    one = self._elsewhere(first, name, value)
                if isinstance(one, str):
                    refused[_flag(name, value)] = one
                elif one is not None and _gains(best, one):
                    best = one
                    found.append(one)
        return found, refused

    def _elsewhere(self, first: _Asked, name: str, value: Any) -> _Asked | str:
        """Return what goes not with the layout that was fixed, but with another of its own."""
        one = self._ask({name: value})
        if isinstance(one, str):
            return one
        own = {k: v for k, v in _layout_words(one.layout).items() if k in first.given}
        return self._ask(own | {name: value})

    def _with(self, state: _Asked, name: str, value: Any) -> _Asked | str | None:
        """Return a state with one word more; None where it is so already."""
        if self._is_said(state, name, value):
            return None
        return self._ask(dict(state.given) | {name: value})

    def _is_said(self, state: _Asked, name: str, value: Any) -> bool:
        said = {**self._question.to_record(), **state.given}
        return bool(said.get(name) == value) or (name == "base_bits" and "lora" not in said)

    def _path(self, first: _Asked, open_: _Asked) -> tuple[_Asked, ...]:
        """Return the states on the way to one that fits, what gains most for its time first.

        Words of the software are tried by degree until some layout fits; the layout that is then
        the fastest says the rest. Where nothing fits, all changes that gain something are made.
        """
        target = self._holding(open_)
        if target is None:
            wanted = [(name, value) for name, values, _ in _TRIED for value in values]
        else:
            layout = target.columns.layout(0)
            wanted = [*target.given.items(), *_layout_words(layout).items()]
        way = [first]
        while steps := [
            one
            for name, value in wanted
            if isinstance(one := self._with(way[-1], name, value), _Asked)
            and (target is not None or _gains(way[-1], one))
        ]:
            way.append(max(steps, key=partial(_worth, way[-1])))
            if way[-1].fits:
                return tuple(way[1:])
        # Words of a layout may go together only.
        end = None if target is None else self._ask(dict(wanted))
        return (*way[1:], end) if isinstance(end, _Asked) else tuple(way[1:])

    def _holding(self, open_: _Asked) -> _Asked | None:
        """Return the question with the fewest words of software with which some layout fits."""
        found = open_
        for degree in Degree:
            for name, values, one in _TRIED:
                if found.fits:
                    return self._fewest(found)
                if one != degree or name in _OF_LAYOUT:
                    continue
                more = (self._with(found, name, value) for value in values)
                asked = [found, *(m for m in more if isinstance(m, _Asked))]
                found = min(asked, key=lambda one: (not one.fits, one.needed_gib))
        return self._fewest(found) if found.fits else None

    def _fewest(self, found: _Asked) -> _Asked:
        """Return a question that fits without the words that gain it no time."""
        for name in list(found.given):
            fewer = self._ask({k: v for k, v in found.given.items() if k != name})
            if isinstance(fewer, _Asked) and fewer.fits and fewer.step_s <= found.step_s * _SAME:
                found = fewer
        return found

    def _trial(self, before: _Asked, after: _Asked) -> Trial:
        said = _difference(before.given, after.given)
        return Trial(
            words=" ".join(_flag(name, value) for name, value in said.items()),
            asks=max((_ASKS[name] for name in said if name in _ASKS), default=""),
            needed_gib=after.needed_gib, gained_gib=before.needed_gib - after.needed_gib,
            step_time_s=after.step_s, step_factor=after.step_s / before.step_s, fits=after.fits,
            in_stack=self._written(before, after) if said else (),
        )  # fmt: skip

    def _written(self, before: _Asked, after: _Asked) -> tuple[str, ...]:
        """Return what is other in the command and files that start the job."""
        old, new = (self._started(one) for one in (before, after))
        return tuple(line for line in new if line not in old)

    def _started(self, asked: _Asked) -> list[str]:
        space = layout_space(self._read(asked.given).layout, SPACE) or SPACE
        case = self._predictor.case(asked.job, fleet=self._roomy, space=space)
        found, _ = commands(
            case, self._row, asked.layout, group=self._where, nodes=self._count, space=space
        )
        files = [file for one in found for file in one.files.items()]
        lines = [line for one in found for line in _words_of(one.text)]
        lines += [line for name, text in files for line in _lines_of(name, text)]
        return [line.rstrip() for line in lines if line.strip()]

    def _smallest(self, job: Job) -> Configuration | None:
        """Return the machine that holds the job as asked for the least money an hour."""
        known, space = self._predictor, layout_space(self._question.layout, SPACE)
        fleet = known.fleet_of(job)
        offers = known.catalogue.select(OfferFilter(pricing=_ON_DEMAND))
        cheapest: dict[tuple[int, int], int] = {}  # the first offer of a kind of machine
        for offer, row in enumerate(offers.type_index.tolist()):
            if fleet.is_supported[row] and fleet.is_accelerated[row]:
                cheapest.setdefault((int(fleet.device[row]), int(fleet.per_node[row])), offer)
        rows = offers.type_index[list(cheapest.values())]
        case = known.case(job, space=space)
        bounds = least_step_s(
            case, first_look(case, rows, np.ones_like(rows)), np.arange(rows.size)
        )
        able = np.flatnonzero(np.isfinite(bounds))[:_MOST_TYPES]
        for row, offer in zip(rows[able], np.array([*cheapest.values()])[able], strict=True):
            columns = known.step_columns(job, np.array([row]), np.array([1]), space=space)
            if not columns.status[0]:
                return Configuration(parts=((offer_of(known.catalogue, offers, int(offer)), 1),))
        return None

    def _most(self, name: str, state: _Asked, least: int, most: int) -> int | None:
        """Return the largest value with which a state still fits, in powers of two."""
        if not state.fits:
            return None
        size, dp = least, state.layout.dp
        while size <= most:
            micro = size if name == "micro_batch" else 1
            said = {name: size, "micro_batch": micro, "batch": micro * dp}
            found = self._ask(dict(state.given) | said)
            if not isinstance(found, _Asked) or not found.fits:
                break
            size *= 2
        return size // 2 if size > least else None


_ON_DEMAND: Final[tuple[Pricing, ...]] = ("on-demand",)
_ASKS: Final = {
    name: "fewer bits" if degree is Degree.ROUNDED else "other weights"
    for name, _, degree in _TRIED
    if degree >= Degree.ROUNDED
}
_HINT: Final = "choose another type, count or precision"
# Words of a layout, and those that any job has.
_OF_LAYOUT: Final = ("recompute", "micro_batch", "zero", "offload", "tp", "pp", "cp")
_OF_ANY_JOB: Final = ("micro_batch", "offload")
# Steps that differ by less take the same time.
_SAME: Final = 1.005


def _layout_words(layout: Layout) -> dict[str, Any]:
    """Return what a question says that has just this layout."""
    moved = ",".join(one for one in OFFLOADS if one in layout.offload) or False
    values = (layout.recompute, layout.micro_batch, layout.zero_stage, moved, layout.tp,
              layout.pp, layout.cp)  # fmt: skip
    return dict(zip(_OF_LAYOUT, values, strict=True))


def _gains(before: _Asked, after: _Asked) -> bool:
    return _gain(before, after) > _LEAST_GAIN * before.needed_gib


def _gain(before: _Asked, after: _Asked) -> float:
    return before.needed_gib - after.needed_gib


def _worth(before: _Asked, after: _Asked) -> float:
    """Return what a step gains for what it costs [GiB]."""
    slower = max(math.log(after.step_s / before.step_s), 0.0)
    return _gain(before, after) / (0.02 + slower)


def _words_of(command: str) -> list[str]:
    """Return a command's options with their values, and its remark."""
    text, _, remark = command.partition("  #")
    return [*re.split(r"\s+(?=--|\w+=)", text), f"# {remark.strip()}" if remark else ""]


def _lines_of(name: str, text: str) -> list[str]:
    """Return what a file says, line by line; a setting in JSON with all that it is part of."""
    if not name.endswith(".json"):
        return text.splitlines()

    def settings(said: Any, path: str) -> Iterator[str]:
        if not isinstance(said, dict):
            yield f"{path} = {json.dumps(said)}"
            return
        for key, value in said.items():
            yield from settings(value, f"{path}.{key}" if path else key)

    return [f"{name}: {line}" for line in settings(json.loads(text), "")]


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if before.get(name) != value}


def _flag(name: str, value: Any) -> str:
    """Return a word as it is typed."""
    flag = flag_of(name)
    if value is True:
        return flag
    return f"--no-{flag[2:]}" if value is False else f"{flag} {value}"
