"""What a user names, and what is answered: configurations in words, explanations in rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from advisor.domain import Explanation, Predictions

_COUNTED: Final = re.compile(r"(?P<count>\d+)\s*[x×]\s*(?P<name>\S+)")


def named(configuration: str | tuple[str, int]) -> tuple[str, int]:
    """Return type and number of machines of a configuration in words.

    Examples
    --------
    >>> named("g5.xlarge"), named("2 x g5.xlarge"), named(("g5.xlarge", 4))
    (('g5.xlarge', 1), ('g5.xlarge', 2), ('g5.xlarge', 4))
    """
    if not isinstance(configuration, str):
        name, count = configuration
        return str(name), int(count)
    found = _COUNTED.fullmatch(configuration.strip())
    return (found["name"], int(found["count"])) if found else (configuration.strip(), 1)


def explanation(found: Predictions, effects: Sequence[Mapping[str, float]]) -> Explanation:
    """Join what the steps wait for with what was learned, a row a configuration."""
    rows = []
    for candidate, effect in zip(found.candidates, effects, strict=True):
        offer, count = candidate.configuration.parts[0]
        shares = {f"share_{name}": share for name, share in candidate.shares.items()}
        rows.append({
            "configuration": f"{count} x {offer.instance_type}",
            "learned": candidate.is_learned,
            **shares,
            **effect,
        })  # fmt: skip
    return Explanation(tuple(rows))
