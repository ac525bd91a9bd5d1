"""The exported row of an answer's record, and what is known of the job beside it.

Everything is read from the JSON record of ``advisor recommend --json``: an export holds the
numbers of the answer, and computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from advisor.answer import SCHEMA_VERSION, Candidate, Offer
from advisor.errors import AdvisorError, UsageError
from advisor.rank import Renting

HERE: Final = "here"
# Room beside the estimate for pip, which may bring in torch with CUDA's libraries: about 3 GB, at
# 5 MB/s. [s]
_INSTALL_S: Final = 600


class NothingToExportError(AdvisorError):
    """The answer has no row that satisfies the constraints."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pick(Candidate):
    """The row of an answer that is exported.

    ``run`` is the recorded run, or the name of the job.
    """

    run: str

    @property
    def rented(self) -> Offer:
        """The machines, where they are all of one type."""
        return self.configuration.parts[0][0]

    @property
    def is_spot(self) -> bool:
        """Whether any of the machines may be taken away."""
        return any(one.pricing == "spot" for one, _ in self.configuration.parts)

    @property
    def nodes(self) -> int:
        """Machines, all together."""
        return sum(count for _, count in self.configuration.parts)

    @property
    def longest_s(self) -> int:
        """Time limit: the high end of the interval, and room to install packages, in seconds."""
        return -int(-self.training_time_h.high * 3600 // 1) + _INSTALL_S


def read_pick(record: Any, rank: int | None = None) -> Pick:
    """Return a row of the record of ``advisor recommend --json``.

    ``rank``: the row; the best value by default, which may be the machine at hand.

    Raises UsageError if there is no such row, or the record is none of a recommendation. Raises
    NothingToExportError if nothing satisfied the constraints.
    """
    try:
        return _read(record, rank)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"cannot read this as an answer: {type(error).__name__} {error}",
            hint="give a file that `advisor recommend --json` wrote",
        ) from error


def ranks_to_try(record: Mapping[str, Any]) -> list[int | None]:
    """Return the default pick, and the other rows by time and money as best values are picked."""
    best = record["picks"].get("best_value")
    rows = [row for row in record["front"] if row["rank"] != best]
    renting = Renting.from_record(record.get("judged_by", {}))
    rows.sort(
        key=lambda row: float(
            renting.worth(
                "best_value", row["training_time_h"]["value"], row["cost_usd"]["value"],
                sum(part["count"] for part in row["configuration"]), row.get("request_h", 0.0),
            )
        )
    )  # fmt: skip
    return [None, *(row["rank"] for row in rows)]


def _read(record: Mapping[str, Any], rank: int | None) -> Pick:
    if record["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {record['schema_version']}, not {SCHEMA_VERSION}")
    rows = record["front"]
    wanted = rank if rank is not None else record["picks"].get("best_value")
    if wanted is None:
        raise NothingToExportError(
            f"nothing satisfies the constraints for {record['run']}",
            hint="see the nearest misses with `advisor recommend`, and relax one constraint",
        )
    is_here = wanted == HERE
    row = record["here"] if is_here else next((r for r in rows if r["rank"] == wanted), None)
    if row is None:
        raise UsageError(
            f"there is no row {wanted}",
            hint=f"give 1 to {len(rows)}" if rows else "nothing satisfies the constraints",
        )
    return Pick.from_record({**row, "run": str(record["run"])})
