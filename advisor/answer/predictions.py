"""Answers for configurations that were named, and why they are what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from advisor import show
from advisor.answer.candidate import Candidate
from advisor.answer.json_records import Recorded
from advisor.errors import AdvisorError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Recorded):
    """A named configuration that has no answer, and why.

    ``rank`` is its place among those that were named, from 1; ``configuration`` is as
    ``"2 x g5.xlarge"``; ``error`` is what would have been raised, had this one been asked alone.
    """

    renamed: ClassVar[Mapping[str, str]] = {"error": ""}
    written: ClassVar[tuple[str, ...]] = ("reason", "hint")

    rank: int
    configuration: str
    error: AdvisorError

    @property
    def reason(self) -> str:
        """Why there is no answer."""
        return str(self.error)

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.error.hint


@dataclass(frozen=True, slots=True)
class Predictions:
    """An answer for every configuration that was named, in their order; ``rank`` is the place."""

    rows: tuple[Candidate | Refused, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The configurations that the job can run on."""
        return tuple(one for one in self.rows if isinstance(one, Candidate))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The configurations without an answer, each with its reason."""
        return tuple(one for one in self.rows if isinstance(one, Refused))

    def __len__(self) -> int:
        """Return how many configurations were asked about."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Candidate | Refused]:
        """Go through the answers in the order of the question."""
        return iter(self.rows)

    def __getitem__(self, place: int) -> Candidate:
        """Return the candidate of one configuration; raise why there is none."""
        one = self.rows[place]
        if isinstance(one, Refused):
            raise one.error
        return one

    def __repr__(self) -> str:
        """Say how many were asked about and how many have an answer."""
        return f"<Predictions: {len(self.candidates):,} of {len(self):,} configurations>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row a configuration; bounds are columns of their own.

        ``reason`` says why a configuration has no numbers.
        """
        return show.answers_frame([one.to_record() for one in self.rows])

    def _repr_html_(self) -> str:
        return show.table_html(self.to_frame())


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job takes what it takes on some configurations."""

    # a mapping a configuration: ``configuration``, ``learned``, ``share_NAME`` of the step by what
    # it waits for, and ``effect_GROUP``: by which factor what is known of the GROUP (job, anchor,
    # series, configuration, layout, physics) moves the learned answer from that of a median run;
    # nan where physics alone answers
    rows: tuple[Mapping[str, Any], ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row a configuration."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def _repr_html_(self) -> str:
        return show.table_html(self.to_frame())
