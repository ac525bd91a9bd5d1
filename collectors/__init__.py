"""Recordings of training scripts: run them, sample them, hook them, read them back.

Complete in itself: imports nothing of ``advisor`` and nothing of the planners. Names are imported
when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.collectors.errors import RecordingError as RecordingError
    from advisor.collectors.format.recording import Reading as Reading
    from advisor.collectors.format.recording import Recording as Recording

_HOME = {
    "Reading": "advisor.collectors.format.recording",
    "Recording": "advisor.collectors.format.recording",
    "RecordingError": "advisor.collectors.errors",
}
__all__ = ["Reading", "Recording", "RecordingError"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'advisor.collectors' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
