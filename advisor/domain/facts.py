"""Where a number is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["measured", "looked up", "computed", "learned", "given", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number the estimate rests on: what it is, its value in words, and where it is from."""

    what: str
    value: str
    source: Source
    note: str = ""
