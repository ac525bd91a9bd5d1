"""``Advice``: one change, what it saves of the whole job, and on what evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from advisor import words
from advisor.domain import SCHEMA_VERSION, Candidate, Estimate, Recorded
from advisor.jobs.job import Job
from advisor.shown import frames

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
    """Text to paste, and where it goes.

    Attributes
    ----------
    kind : {"flag", "lines", "yaml"}
    text : str
        As it is pasted; lines are separated by newlines.
    """

    kind: HowKind
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("nothing to paste")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Recorded):
    """A change that the recording shows to apply, and what it saves of the whole job.

    Attributes
    ----------
    name : str
        Of the cure, as words with hyphens: ``"mixed-precision"``.
    change : str
        What to change, in one sentence.
    source : str
        The module of ``advisor.advice`` that gives it.
    time_saved_h, cost_saved_usd : Estimate or None
        Over the whole job on the machines it is judged on; negative where it costs. None where
        nothing is known of it, or nothing is saved of that kind. [h], [USD]
    time_factor, cost_factor : float
        Of the whole job with the change, by that without.
    evidence : {"measured", "table", "formula"}
    rests_on : str
        What was measured, which table, which equation; with figures and source.
    condition : str
        When it holds, or does not pay.
    is_model_kept : bool
        The same numbers are learned, up to rounding. False where accuracy must be looked at.
    details : mapping
        Figures of its own, by name with their unit; empty for most.
    job : Job or None
        With the change; None where no change of the job stands for it.
    then : Candidate or None
        That job on the machines it is judged on; None where it is held against another than
        ``now``.
    """

    renamed: ClassVar[Mapping[str, str]] = {"is_model_kept": "model_kept", "job": "", "then": ""}

    name: str
    change: str
    time_saved_h: Estimate | None
    cost_saved_usd: Estimate | None
    time_factor: float
    cost_factor: float
    evidence: Evidence
    rests_on: str
    condition: str
    how: How
    source: str = ""
    is_model_kept: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)
    job: Job | None = field(default=None, repr=False, compare=False)
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
        of ``ranking.picks``' best value.
        """
        product = max(self.time_factor, _LEAST_FACTOR) * max(self.cost_factor, _LEAST_FACTOR)
        return -math.log(product)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList(Recorded):
    """Advice for a job on some machines, the strongest first.

    Attributes
    ----------
    run : str
        The recorded run, or the name of the job.
    now : Candidate
        The job as it is, on the machines it is judged on.
    meets_constraints : bool
        Whether the job as it is keeps what was asked for.
    """

    schema_version: int = SCHEMA_VERSION
    run: str
    now: Candidate
    advice: tuple[Advice, ...]
    meets_constraints: bool = True

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
        head = f"<Advice on {self.run}: {words.answer_line(self.now.to_record())}>"
        lines = (
            f"{one.name}: {one.time_factor:.2f} x the time, {one.cost_factor:.2f} x the cost "
            f"({one.evidence}): {one.change}"
            for one in self.advice
        )
        return "\n".join((head, *lines))

    def _repr_html_(self) -> str:
        return frames.html(self.to_frame())


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """Return advice as one flat row."""
    row = {name: record[name] for name in ("name", "change", "time_factor", "cost_factor")}
    for name in ("time_saved_h", "cost_saved_usd"):
        bounds = record[name] or {"value": None, "low": None, "high": None}
        row |= {name: bounds["value"], f"{name}_low": bounds["low"],
                f"{name}_high": bounds["high"]}  # fmt: skip
    return (
        row
        | {name: record[name] for name in ("evidence", "rests_on", "condition")}
        | {"how": record["how"]["text"]}
    )


# Nothing takes no time: a cost of zero is not ranked above all else.
_LEAST_FACTOR: Final = 1e-3
