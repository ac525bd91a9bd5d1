"""Why a machine is not estimated, or not listed: the rows of ``reasons.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from advisor.planners.core import read_table

_TABLE: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = read_table(
    Path(__file__).with_name("reasons.toml")
)
# From a reason to what is said of it: those that are a status of an estimate, and all.
OF_ESTIMATES: Final = _TABLE["statuses"]
REASONS: Final = {**OF_ESTIMATES, **_TABLE["offers"]}
