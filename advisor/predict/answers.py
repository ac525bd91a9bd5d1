"""What is answered beside candidates: explanations in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.domain import Explanation, Predictions, Refused


def explanation(found: Predictions, effects: Sequence[Mapping[str, float]]) -> Explanation:
    """Join what the steps wait for with what was learned, a row a configuration.

    ``effects`` has one entry a candidate; what has none is a row with its reason.
    """
    told = iter(effects)
    rows: list[Mapping[str, Any]] = []
    for one in found:
        if isinstance(one, Refused):
            rows.append({"configuration": one.configuration, "reason": one.reason})
            continue
        offer, count = one.configuration.parts[0]
        shares = {f"share_{name}": share for name, share in one.shares.items()}
        rows.append({
            "configuration": f"{count} x {offer.instance_type}",
            "learned": one.is_learned,
            **shares,
            **next(told),
        })  # fmt: skip
    return Explanation(tuple(rows))
