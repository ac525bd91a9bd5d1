"""The recommendation: its rows, its picks, its changes, and its known error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from advisor import show
from advisor.answer.candidate import Candidate, Estimate
from advisor.answer.json_records import SCHEMA_VERSION, Recorded
from advisor.answer.offers import Offer
from advisor.words import Claim, answer_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The catalogue behind an answer: day of its newest price shown (ISO 8601), and its offers."""

    as_of: str
    offers: int | None = None

    @classmethod
    def of(cls, shown: Iterable[Candidate | None], offers: int | None = None) -> Prices:
        """Return the prices of what is shown; without a day where none of them has one."""
        rented = (offer for one in shown if one for offer, _ in one.configuration.parts)
        return cls(as_of=max((offer.price_as_of for offer in rented), default=""), offers=offers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What the times come from."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAdvice(Recorded):
    """A short real run that is worth its price before the job is started.

    One machine of ``offer`` runs for ``minutes``; ``gain_usd`` is the expected saving of
    the choice that is made after it, its price not subtracted; ``log_sd_before`` and
    ``log_sd_after`` are the error of ln(time) of the candidate that would be chosen now.
    """

    renamed: ClassVar[Mapping[str, str]] = {"offer": "configuration"}

    offer: Offer
    minutes: float
    price_usd: float
    gain_usd: float
    log_sd_before: float
    log_sd_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError(Recorded):
    """How far estimates were off on hardware of a family, each accelerator left out of its fit."""

    family: str
    # median over its accelerators of their median absolute percentage error
    median_ape_fraction: float
    # accelerators, rows: measured: how many of the family, and how many steps on them
    accelerators: int
    rows: int
    # protocol, day: of ``advisor validate``, and when its figures were stored
    protocol: str
    day: str
    jobs: str = "described jobs"  # what was asked, in words: jobs that are known as the user's is
    devices: str = "1 device"  # how many, in words: errors grow with them
    of: str = "step"  # what errs so: a step, or the whole job


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange(Recorded):
    """What the best value would become if one thing changed."""

    # ``"budget"``, ``"deadline"`` or the name of a cure of ``advisor.advice``; ``"device"`` and
    # ``"ddp"``, which the answer assumes: what holds without; ``"elastic"``, ``"unreleased"``
    name: str
    do: str
    training_time_h: Estimate
    cost_usd: Estimate
    # time_factor, cost_factor: of the best value's
    time_factor: float
    cost_factor: float
    # the best value after the change, where it was asked for and is on other machines
    pick: Candidate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation(Recorded):
    """What is shown: the Pareto front, and why everything else is not on it."""

    schema_version: int = SCHEMA_VERSION
    run: str  # the recorded run, or the name of the job
    # the facts of the job that the numbers rest on, with where each comes from
    job: Mapping[str, Any]
    serving: str = ""  # what serves a mixture of experts once it is trained, in words
    catalogue: Prices  # with the priced offers that the request admits
    predictor: Named
    considered: int  # candidates looked at: offers times counts
    rejected: Mapping[str, int]  # candidates by the first reason that ruled them out
    # what to choose, by the name of what is wanted (``rank.front``): a rank of the front
    picks: Mapping[str, int | Literal["here"]] = field(default_factory=dict)
    # what picks count of a person's time, in hours (``rank.renting``)
    judged_by: Mapping[str, float] = field(default_factory=dict)
    # accelerators and limits (``"--region mars"``) that no offer has: the nearest that one has
    unoffered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # claims, summary: the choice as data that can be checked, and in words, most important first
    claims: tuple[Claim, ...] = ()
    summary: tuple[str, ...] = ()
    shared_reasons: tuple[str, ...] = ()  # what holds for every candidate of the front
    changes: tuple[ProposedChange, ...] = ()  # what would change the best value that is rented
    known_error: KnownError | None = None
    # fastest first. Of any two, one is faster and the other cheaper, each by at least the gain
    # that was asked for and by more than the model's error in comparing them.
    front: tuple[Candidate, ...]
    # the same job on this machine, at its own price; None where it cannot run here, or nobody
    # looked
    here: Candidate | None = None
    # where ``front`` is empty: what would come closest to the constraints
    nearest: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    # where they were asked for: short runs that are worth their price, best first
    probes: tuple[ProbeAdvice, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the front as a table, one row a candidate; bounds are columns of their own."""
        return show.answers_frame(self.to_record()["front"])

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw time against cost of the list, or of the nearest misses, with matplotlib.

        Raises UsageError if there is nothing to draw.
        """
        return show.plot_front(self.to_record(), axes)

    def __repr__(self) -> str:
        """Say what was asked about, what to choose, then the list, a line a candidate."""
        record = self.to_record()
        lines = [answer_line(one) for one in record["front"] or record["nearest"]]
        head = f"<Recommendation: {show.headline_of(record)}>"
        return "\n".join([head, *self.summary, *lines])

    def _repr_html_(self) -> str:
        """Show itself in a notebook: a table and a chart."""
        return show.recommendation_html(self.to_record())
