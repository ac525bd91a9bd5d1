"""The words of the command line, as answers print them: more can be asked by adding to them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

TYPED: Final[ContextVar[tuple[str, ...]]] = ContextVar("TYPED", default=())
