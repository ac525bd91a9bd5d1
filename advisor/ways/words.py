"""What is said of a row whose network nobody states."""

from __future__ import annotations

from typing import Final

# Shares of a step below this are not worth a number.
_WORTH_SAYING: Final = 0.01


def assumed_network(network_share: float | None = None) -> str:
    """Return what is said of a row whose network nobody states.

    >>> assumed_network(0.25)[-39:]
    '(25% of the step waits for the network)'
    """
    said = "network assumed: none is stated, so the low end of machines of this size is used"
    if network_share is None:
        return said
    share = "less than 1%" if network_share < _WORTH_SAYING else f"{network_share:.0%}"
    return f"{said} ({share} of the step waits for the network)"
