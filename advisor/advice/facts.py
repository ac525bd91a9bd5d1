"""``Facts``: what is read of a job once, and the one estimate that every cure is priced by.

``Advice`` is one change, what it saves of the whole job, and on what evidence; ``without`` and
``faster_by`` make jobs in which a part of the step is done otherwise.
"""

from __future__ import annotations

import math
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, get_args

import numpy as np

from advisor import show
from advisor.answer import SCHEMA_VERSION, Candidate, Estimate, Recorded
from advisor.ask import Constraints
from advisor.catalogue import Pricing
from advisor.collectors.format import Recording, rows_of
from advisor.jobs import Job
from advisor.planners.core import GIB, MIB, Operator, Work
from advisor.planners.layouts import SearchSpace
from advisor.quantities import QUANTILES, digits, percent_text, seconds_text
from advisor.words import answer_line

if TYPE_CHECKING:
    import pandas as pd


# What a figure rests on: this recording or a trial on this machine; a published table; an equation
# or the device model, with what was recorded put in.
Evidence = Literal["measured", "table", "formula"]
# What to paste: flags of a command line or environment variables, lines of the script, YAML.
HowKind = Literal["flag", "lines", "yaml"]
EVIDENCE: Final[tuple[Evidence, ...]] = get_args(Evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Text to paste, and where it goes."""

    kind: HowKind
    text: str  # as it is pasted; lines are separated by newlines

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("nothing to paste")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Recorded):
    """A change that the recording shows to apply, and what it saves of the whole job."""

    renamed: ClassVar[Mapping[str, str]] = {"is_model_kept": "model_kept", "job": "", "then": ""}

    name: str  # of the cure, as words with hyphens: ``"mixed-precision"``
    change: str  # what to change, in one sentence
    # time_saved_h, cost_saved_usd: over the whole job on the machines it is judged on; negative
    # where it costs. None where nothing is known of it, or nothing is saved of that kind. [h],
    # [USD]
    time_saved_h: Estimate | None
    cost_saved_usd: Estimate | None
    # time_factor, cost_factor: of the whole job with the change, by that without
    time_factor: float
    cost_factor: float
    evidence: Evidence
    rests_on: str  # what was measured, which table, which equation; with figures and source
    condition: str  # when it holds, or does not pay
    how: How
    source: str = ""  # the module of ``advisor.advice`` that gives it
    # the same numbers are learned, up to rounding. False where accuracy must be looked at.
    is_model_kept: bool = True
    # figures of its own, by name with their unit; empty for most
    details: Mapping[str, Any] = field(default_factory=dict)
    # with the change; None where no change of the job stands for it
    job: Job | None = field(default=None, repr=False, compare=False)
    # that job on the machines it is judged on; None where it is held against another than ``now``
    then: Candidate | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.evidence not in EVIDENCE:
            raise ValueError(f"no kind of evidence: {self.evidence!r}")
        if not (self.change and self.rests_on and self.condition):
            raise ValueError(f"{self.name}: a change, what it rests on and a condition are needed")
        for factor in (self.time_factor, self.cost_factor):
            if not 0.0 <= factor < math.inf:
                raise ValueError(f"{self.name}: impossible factor {factor}")

    @property
    def strength(self) -> float:
        """Return ln of the factor on time times cost, negated: what advice is ranked by.

        Half the time at the same cost is as strong as half the cost in the same time: the weight
        of ``rank.front``' best value.
        """
        product = max(self.time_factor, _LEAST_FACTOR) * max(self.cost_factor, _LEAST_FACTOR)
        return -math.log(product)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList(Recorded):
    """Advice for a job on some machines, the strongest first."""

    schema_version: int = SCHEMA_VERSION
    run: str  # the recorded run, or the name of the job
    # the job as it is, on the machines it is judged on; None where not training is asked about
    now: Candidate | None
    advice: tuple[Advice, ...]
    meets_constraints: bool = True  # whether the job as it is keeps what was asked for
    # as sentences: what was asked about and gains nothing; what the recording is too noisy to tell
    notes: tuple[str, ...] = ()
    is_whole: bool = True  # False for a program that was stopped: times are of what was seen
    serving: str = ""  # what serves a mixture of experts once it is trained, in words

    def __len__(self) -> int:
        """Return how many pieces of advice there are."""
        return len(self.advice)

    def __iter__(self) -> Iterator[Advice]:
        """Go through them, the strongest first."""
        return iter(self.advice)

    def __getitem__(self, place: int) -> Advice:
        """Return one, from 0."""
        return self.advice[place]

    def to_frame(self) -> pd.DataFrame:
        """Return one row a piece of advice; bounds are columns of their own."""
        import pandas as pd

        return pd.DataFrame([_row(one.to_record()) for one in self.advice])

    def __repr__(self) -> str:
        """Say what is judged, then a line a piece of advice."""
        now = "served" if self.now is None else answer_line(self.now.to_record())
        head = f"<Advice on {self.run}: {now}>"
        lines = (
            f"{one.name}: {one.time_factor:.2f} x the time, {one.cost_factor:.2f} x the cost "
            f"({one.evidence}): {one.change}"
            for one in self.advice
        )
        return "\n".join((head, *lines))

    def _repr_html_(self) -> str:
        return show.table_html(self.to_frame())


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """Return advice as one flat row."""
    said = {name: record[name] for name in ("name", "change", "time_factor", "cost_factor")}
    said |= show.bounds_of(record, ("time_saved_h", "cost_saved_usd"))
    said |= {name: record[name] for name in ("evidence", "rests_on", "condition")}
    return said | {"how": record["how"]["text"]}


# Nothing takes no time: a cost of zero is not ranked above all else.
_LEAST_FACTOR: Final = 1e-3


# A change replaces part of a step by another: A seconds by A'. Both err by the model's sigma,
# apart from one another, and what is untouched cancels: sd(A - A') = sigma sqrt(A^2 + A'^2). Which
# part that is the estimate does not say; where it halves, A = 2 A', it is sqrt(5) sigma (A - A').
_OF_EFFECT: Final = math.sqrt(5.0)


class Ask(Protocol):
    """The whole job on the machines it is judged on; None where it cannot run there."""

    def __call__(
        self, job: Job, *, pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None,
    ) -> Candidate | None:  # fmt: skip
        """Estimate ``job``; at another price, in other layouts or on other devices than now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that advice is given from."""

    job: Job  # as it is now
    # what was seen of it; None for a job that was described and never run
    recording: Recording | None
    # the job as it is on the machines it is judged on: those that would be rented, or this machine
    now: Candidate
    ask: Ask  # the same estimate of a changed job on the same machines
    constraints: Constraints = field(default_factory=Constraints)  # what was asked for
    # returns the job as it is, as the model answers where ``now`` is what was recorded there; None
    # where ``now`` is the model's
    modelled: Callable[[], Candidate | None] = lambda: None
    # a job on smaller machines of the same family, where it can run; nothing on a machine that is
    # not rented
    smaller: Callable[[Job], Iterable[Candidate]] = lambda _: ()
    # returns what a GiB of memory costs an hour, as ``catalogue.resource_prices``
    resource_prices: Callable[[], Mapping[str, Any]] = dict
    # what memory that is not the machine's own is reached over; None for swap on its own disk
    borrow_bytes_per_s: float | None = None

    @property
    def is_here(self) -> bool:
        """Whether the job is judged on this machine, which costs what the user says."""
        return self.now.configuration.parts[0][0].pricing == "own"

    @property
    def has_accelerators(self) -> bool:
        """Whether the machines it is judged on have accelerators."""
        return all(offer.accelerator for offer, _ in self.now.configuration.parts)

    @property
    def work(self) -> Work:
        """What a step of the job does, of one that has steps."""
        assert self.job.work is not None
        return self.job.work

    def priced(
        self, name: str, job: Job, *, effect_log_sd: float | None = None,
        pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None, **figures: Any,
    ) -> Advice | None:  # fmt: skip
        """Return the advice to make the job this one, priced by the one estimate.

        ``name``: of what is said in ``words.toml``, with ``figures`` in it; ``effect_log_sd``: one
        standard deviation of the saved time, as a share of it; from the model's own error by
        default; ``pricing``: of the same machines, where that is the change; ``space``: what a
        layout may be, where that is the change; ``devices``: of this machine, where that is the
        change.

        Returns
        -------
        Advice, or None where the changed job cannot run there.
        """
        then = self.ask(job, pricing=pricing, space=space, devices=devices)
        before = self._before(job, space, devices)
        if then is None or before is None or not math.isfinite(then.training_time_h.value):
            return None
        found = self.advised(
            name, _factor(before.training_time_h, then.training_time_h),
            _factor(before.cost_usd, then.cost_usd),
            self._effect_sd(then) if effect_log_sd is None else effect_log_sd, **figures,
        )  # fmt: skip
        return replace(found, job=job, then=then)

    def advised(
        self, name: str, time_factor: float, cost_factor: float, effect_sd: float, **figures: Any
    ) -> Advice:
        """Return advice that makes time and cost of the job so many times what they are."""
        return Advice(
            **self.worded(name, **figures), time_factor=time_factor, cost_factor=cost_factor,
            time_saved_h=saved(self.now.training_time_h, time_factor, effect_sd),
            cost_saved_usd=saved(self.now.cost_usd, cost_factor, effect_sd),
        )  # fmt: skip

    def worded(self, name: str, **figures: Any) -> dict[str, Any]:
        """Return what advice says, with what is known of the job and with ``figures`` in it."""
        known = {"job": self.job, "now": self.now, "recording": self.recording}
        return worded(name, **known, **figures)

    def _before(
        self, job: Job, space: SearchSpace | None, devices: int | None
    ) -> Candidate | None:
        """Return what a changed job is held against: a model's answer against the model's."""
        is_recorded = job.is_as_recorded and job.limits == self.job.limits
        if is_recorded and space is None and devices is None:
            return self.now
        return self.modelled() or self.now

    def _effect_sd(self, then: Candidate) -> float:
        return _OF_EFFECT * max(_log_sd(one.step_time_s) for one in (self.now, then))


def source(
    *cures: Callable[[Facts], Iterable[Advice | None]], needs_work: bool = True
) -> Callable[[Facts], Iterator[Advice]]:
    """Return what a source advises: of its cures those that apply."""

    def advise(facts: Facts) -> Iterator[Advice]:
        if needs_work and facts.job.work is None:
            return
        for cure in cures:
            yield from (one for one in cure(facts) if one is not None)

    return advise


MODEL: Final = "the device model, asked with the recorded operators"
_DESCRIBED: Final = "the device model, asked about the described model in other software"
# How figures are written in ``words.toml``.
_WRITTEN: Final[Mapping[str, Callable[[float], str]]] = {
    "percent": percent_text, "percent1": partial(percent_text, decimals=1), "digits": digits,
    "seconds": seconds_text, "GiB": lambda size: digits(size / GIB),
    "MiB": lambda size: digits(size / MIB), "MB": lambda size: digits(size / 1e6),
    "GB": lambda size: digits(size / 1e9),
}  # fmt: skip


class _Words(string.Formatter):
    """Text with figures in it, as ``words.toml`` says how to write each."""

    def format_field(self, value: Any, spec: str) -> str:
        written = _WRITTEN.get(spec)
        return format(value, spec) if written is None else written(value)


@cache
def cure_words() -> dict[str, dict[str, Any]]:
    """Return what is said of every cure, by its name, with its source."""
    text = Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    return {
        name: {"source": of, **words}
        for of, cures in tomllib.loads(text).items()
        for name, words in cures.items()
    }


def worded(name: str, /, **figures: Any) -> dict[str, Any]:
    """Return what advice says, by the fields of ``Advice``, with ``figures`` in it."""
    kept = ("source", "change", "rests_on", "condition", "evidence", *get_args(HowKind))
    figures |= {"MODEL": MODEL, "DESCRIBED": _DESCRIBED}
    words = cure_words()[name]
    said = {of: _Words().vformat(words[of], (), figures) for of in kept if of in words}
    (kind,) = (one for one in get_args(HowKind) if one in said)
    how = How(kind=kind, text=said.pop(kind))
    usual = {"name": name.partition(" (")[0], "evidence": "formula", "how": how}
    return usual | said | {"is_model_kept": words.get("is_model_kept", True)}


def saved(before: Estimate, factor: float, effect_sd: float) -> Estimate:
    """Return what a change saves of a quantity, in its unit.

    ``factor``: of the quantity with the change; the errors of both are mostly the same one;
    ``effect_sd``: one standard deviation of the error of the saving, as a share of it.

    Examples
    --------
    >>> found = saved(Estimate(value=10, low=9, high=12), 0.6, 0.1)
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (4.0, 3.23, 5.04)
    """
    value = before.value * (1.0 - factor)
    if value == 0:
        return Estimate(value=0.0, low=0.0, high=0.0, coverage=before.coverage)
    reach = QUANTILES[before.coverage] * effect_sd
    below = math.hypot(1.0 - before.low / before.value, reach)
    above = math.hypot(before.high / before.value - 1.0, reach)
    ends = sorted((value * (1.0 - below), value * (1.0 + above)))
    return Estimate(value=value, low=ends[0], high=ends[1], coverage=before.coverage)


def _factor(before: Estimate, after: Estimate) -> float:
    return after.value / before.value if before.value > 0 else 1.0


def _log_sd(one: Estimate) -> float:
    return math.log(one.high / one.low) / (2.0 * QUANTILES[one.coverage])


# A step keeps at least this share of itself, however much is taken out of it.
_LEAST_LEFT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Recorded operators of a step that a cure would take out."""

    calls: Mapping[tuple[str, str], int]  # by name and phase
    seconds: float  # what they took of the recorded step [s]
    share: float


def cut_of(facts: Facts, is_cut: Callable[[str, str, str], bool]) -> Cut | None:
    """Return the recorded operators that are meant; None where there are none, or no step.

    ``is_cut`` is asked by name, phase and shapes.
    """
    recording = facts.recording
    if recording is None or recording.deep_step is None or recording.step_time is None:
        return None
    calls: Counter[tuple[str, str]] = Counter()
    taken = whole = 0.0
    columns = ("name", "phase", "shapes", "count", "time_s")
    for name, phase, shapes, count, time_s in rows_of(recording.deep_step.operators, *columns):
        whole += time_s
        if is_cut(name, phase, shapes):
            calls[name, phase] += count
            taken += time_s
    if not calls or whole <= 0:
        return None
    share = taken / whole
    return Cut(calls=calls, seconds=share * _computing_s(facts.job), share=share)


def without(
    job: Job, cut: Cut, *, instead: tuple[Operator, ...] = (), instead_s: float = 0.0
) -> Job:
    """Return the job with other operators in place of those cut out.

    ``instead``: what is computed in their place, in one pass over a micro-batch; ``instead_s``:
    what that takes on the recorded machine [s].
    """
    assert job.work is not None
    made = job.work.operators
    kept = [pair not in cut.calls for pair in zip(made.name, made.phase, strict=True)]
    measured = job.measured
    if measured is not None:
        left = measured.step_s - cut.seconds + instead_s
        least = _LEAST_LEFT * measured.step_s
        measured = replace(measured, step_s=max(left, least))
    work = replace(job.work, operators=made.keeping(np.array(kept, bool), *instead))
    return replace(job, work=work, measured=measured)


def faster_by(job: Job, seconds: float) -> Job:
    """Return the job with a measured step that is so much shorter [s], its work unchanged."""
    if job.measured is None:
        return job
    least = _LEAST_LEFT * job.measured.step_s
    step_s = max(job.measured.step_s - seconds, least)
    return replace(job, measured=replace(job.measured, step_s=step_s))


def _computing_s(job: Job) -> float:
    """Return the part of the measured step that neither waits for data nor for ranks [s]."""
    seen = job.measured
    return 0.0 if seen is None else max(seen.step_s - job.feed.wait_s - seen.exchange_s, 0.0)
