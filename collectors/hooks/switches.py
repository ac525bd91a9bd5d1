"""The parsed arguments that are about devices: ``--no-cuda``, ``--device cpu``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WORDS = ("cuda", "gpu", "cpu", "accel", "device", "platform")
_LONGEST_VALUE = 40


def device_switches(namespace: Any) -> dict[str, Any]:
    """Return the arguments about devices that are switches or short names."""
    found = {}
    for name, value in vars(namespace).items():
        is_short = isinstance(value, str) and len(value) <= _LONGEST_VALUE
        if (isinstance(value, bool) or is_short) and any(word in name.lower() for word in _WORDS):
            found[name] = value
    return found
