"""Why a machine is not estimated, or not listed: the rows of ``reasons.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TABLE: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = tomllib.loads(
    Path(__file__).with_name("reasons.toml").read_text("utf-8")
)
# From a reason to what is said of it: those that are a status of an estimate, and all.
OF_ESTIMATES: Final = _TABLE["statuses"]
REASONS: Final = {**OF_ESTIMATES, **_TABLE["offers"]}
