"""What real runs took: measured steps, times and bills of recorded jobs on rented machines.

They are kept beside the runs in ``actuals.jsonl`` (one JSON object a line, append-only) and narrow
the estimates of that job, or of any job recorded from the same run.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from advisor.collectors import atomic, bounded
from advisor.errors import RunError, UsageError

FILE_NAME = "actuals.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """One measured step of a job elsewhere.

    Attributes
    ----------
    run : str
        The recorded run whose job it was.
    provider, instance_type : str
    count : int
        Machines.
    step_s : float
        Mean optimizer step. [s]
    time_h, cost_usd : float or None
        Of the whole job, where it was made to its end. [h], [USD]
    """

    run: str
    provider: str
    instance_type: str
    count: int
    step_s: float
    time_h: float | None = None
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s)):
            raise UsageError(f"not a step time: {self.step_s}", hint="give seconds, e.g. 0.25")
        if self.count < 1:
            raise UsageError(f"not a number of machines: {self.count}", hint="give 1 or more")


def append_actual(root: Path, actual: Actual) -> Path:
    """Add a measurement to those beside the runs in ``root``; return the file."""
    path = root / FILE_NAME
    atomic.append_line(path, json.dumps(asdict(actual)).encode() + b"\n")
    return path


def read_actuals(root: Path, run: str) -> tuple[Actual, ...]:
    """Return the measurements of ``run``, in the order in which they were added.

    Raises
    ------
    RunError
        If a line cannot be read; the error names file and line.
    """
    path = root / FILE_NAME
    if not path.exists():
        return ()
    names = {field.name for field in fields(Actual)}
    optional = {field.name for field in fields(Actual) if field.default is not MISSING}
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = bounded.parse_json(line)
            given = names - (optional - set(row))
            actual = Actual(**{name: row[name] for name in given})
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise RunError(
                f"{path}, line {number}: not a measurement ({error})", hint="mend or delete it"
            ) from error
        if actual.run == run:
            found.append(actual)
    return tuple(found)
