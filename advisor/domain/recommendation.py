"""What is recommended, what would change it, and how far it may be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from advisor.domain.candidate import Candidate
from advisor.domain.estimate import Estimate
from advisor.domain.offers import Offer
from advisor.shown import frames, notebook, words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAdvice:
    """A short real run that is worth its price before the job is started.

    Attributes
    ----------
    offer : Offer
        One machine to run on for ``minutes``.
    minutes : float
    price_usd : float
    gain_usd : float
        Expected saving of the choice that is made after it, its price not subtracted. [USD]
    log_sd_before, log_sd_after : float
        Error of ln(time) of the candidate that would be chosen now, without the probe and with.
    """

    offer: Offer
    minutes: float
    price_usd: float
    gain_usd: float
    log_sd_before: float
    log_sd_after: float

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "configuration": self.offer.to_record(1),
            "minutes": self.minutes,
            "price_usd": self.price_usd,
            "gain_usd": self.gain_usd,
            "log_sd_before": self.log_sd_before,
            "log_sd_after": self.log_sd_after,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """How far estimates were off on hardware of a family, each accelerator left out of its fit.

    Attributes
    ----------
    family : str
        E.g. ``"NVIDIA Volta"``.
    median_ape_fraction : float
        Median over its accelerators of their median absolute percentage error.
    accelerators, rows : int
        Measured: how many of the family, and how many steps on them.
    protocol, day : str
        Of ``advisor validate``, and when its figures were stored.
    jobs : str
        What was asked, in words: jobs that are known as the user's is.
    """

    family: str
    median_ape_fraction: float
    accelerators: int
    rows: int
    protocol: str
    day: str
    jobs: str = "described jobs"

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """What the best value would become if one thing changed.

    Attributes
    ----------
    name : str
        ``"budget"``, ``"deadline"`` or the name of a cure of ``advisor.advice``; ``"device"`` and
        ``"ddp"``, which the answer assumes: what holds without.
    do : str
        What to do for it.
    training_time_h, cost_usd : Estimate
        Then.
    time_factor, cost_factor : float
        Of the best value's.
    pick : Candidate or None
        The best value after the change, where it was asked for and is on other machines.
    """

    name: str
    do: str
    training_time_h: Estimate
    cost_usd: Estimate
    time_factor: float
    cost_factor: float
    pick: Candidate | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "do": self.do,
            "training_time_h": self.training_time_h.to_record(),
            "cost_usd": self.cost_usd.to_record(),
            "time_factor": self.time_factor,
            "cost_factor": self.cost_factor,
            "pick": self.pick and self.pick.to_record(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What is shown: the Pareto front, and why everything else is not on it.

    Attributes
    ----------
    run : str
        The recorded run, or the name of the job.
    job : mapping
        The facts of the job that the numbers rest on, with where each comes from.
    catalogue_as_of : str
        Day of the newest price. ISO 8601.
    catalogue_offers : int
        Priced offers that the request admits.
    predictor, predictor_version : str
    considered : int
        Candidates looked at: offers times counts.
    rejected : mapping of str to int
        Candidates by the first reason that ruled them out.
    front : tuple of Candidate
        Fastest first. Of any two, one is faster and the other cheaper, each by at least the gain
        that was asked for and by more than the model's error in comparing them.
    here : Candidate or None
        The same job on this machine, at its own price; None where it cannot run here, or nobody
        looked.
    picks : mapping of str to int or "here"
        What to choose, by the name of what is wanted (``ranking.picks``): a rank of the front.
    summary : tuple of str
        The choice in words, most important first.
    shared_reasons : tuple of str
        What holds for every candidate of the front.
    changes : tuple of ProposedChange
        What would change the best value that is rented.
    known_error : KnownError or None
        Of its hardware.
    nearest : tuple of Candidate
        Where ``front`` is empty: what would come closest to the constraints.
    probes : tuple of ProbeAdvice
        Where they were asked for: short runs that are worth their price, best first.
    """

    run: str
    job: Mapping[str, Any]
    catalogue_as_of: str
    catalogue_offers: int
    predictor: str
    predictor_version: str
    considered: int
    rejected: Mapping[str, int]
    front: tuple[Candidate, ...]
    nearest: tuple[Candidate, ...] = ()
    here: Candidate | None = None
    picks: Mapping[str, int | Literal["here"]] = field(default_factory=dict)
    summary: tuple[str, ...] = ()
    shared_reasons: tuple[str, ...] = ()
    changes: tuple[ProposedChange, ...] = ()
    known_error: KnownError | None = None
    notes: tuple[str, ...] = field(default=())
    probes: tuple[ProbeAdvice, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record of ``advisor recommend --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.run,
            "job": dict(self.job),
            "catalogue": {"as_of": self.catalogue_as_of, "offers": self.catalogue_offers},
            "predictor": {"name": self.predictor, "version": self.predictor_version},
            "considered": self.considered,
            "rejected": dict(self.rejected),
            "picks": dict(self.picks),
            "summary": list(self.summary),
            "shared_reasons": list(self.shared_reasons),
            "changes": [change.to_record() for change in self.changes],
            "known_error": self.known_error and self.known_error.to_record(),
            "front": [candidate.to_record() for candidate in self.front],
            "here": self.here and self.here.to_record(),
            "nearest": [candidate.to_record() for candidate in self.nearest],
            "notes": list(self.notes),
            "probes": [probe.to_record() for probe in self.probes],
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the front as a table, one row a candidate; bounds are columns of their own."""
        return frames.candidates_frame([candidate.to_record() for candidate in self.front])

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw time against cost of the list, or of the nearest misses, with matplotlib.

        Raises
        ------
        UsageError
            If there is nothing to draw.
        """
        return notebook.plot(self.to_record(), axes)

    def __repr__(self) -> str:
        """Say what was asked about, what to choose, then the list, a line a candidate."""
        lines = [words.candidate_line(one.to_record()) for one in self.front or self.nearest]
        head = f"<Recommendation: {notebook.headline(self.to_record())}>"
        return "\n".join([head, *self.summary, *lines])

    def _repr_html_(self) -> str:
        """Show itself in a notebook: a table and a chart."""
        return notebook.recommendation_html(self.to_record())
