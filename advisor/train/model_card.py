"""``card.md`` of a learned predictor: what it was fitted on, how wrong it is, where it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from advisor.records import RunRecord


def card(trained: Any, records: Sequence[RunRecord]) -> str:
    """Return ``card.md``: what the model was fitted on, how wrong it is, where it fails."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.status] = counts.get(record.status, 0) + 1
    families = sorted({r.job.family for r in records})
    instances = sorted({r.instance_key for r in records})
    lines = [
        f"# {trained.name}",
        "",
        f"Fitted {trained.metrics['fitted_at']} by `advisor train models`, seed "
        f"{trained.metrics['seed']}, on {trained.about['records']} runs of "
        f"{', '.join(sorted({r.source for r in records}))} "
        f"(data {trained.about['data_sha256'][:12]}); target `{trained.target}`.",
        "",
        f"- Runs by status: {', '.join(f'{k} {v}' for k, v in sorted(counts.items()))}. Censored "
        "runs count as lower bounds; failed ones have no time and are not fitted.",
        f"- Programs: {', '.join(families)}.",
        f"- Instance types: {', '.join(instances)}.",
        f"- Chosen: {trained.metrics['chosen']}, weights "
        + ", ".join(f"{k} {v:.2f}" for k, v in trained.metrics["weights"].items()) + ".",
        "",
        "Errors on left-out programs (each in turn; weights and intervals from the others):",
        "",
        "| estimator | MAPE | median | p90 | coverage of 90 % | half-width | regret | constant |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for result in trained.metrics["left_out"]:
        m, regret = result["overall"], result["top1_regret"]
        chosen = "-" if regret is None else f"{regret['model']:.3f}"
        constant = "-" if regret is None else f"{regret['constant']:.3f}"
        lines.append(
            f"| {result['name']} | {m['mape_fraction']:.1%} | {m['median_ape_fraction']:.1%} | "
            f"{m['p90_ape_fraction']:.1%} | {m['coverage']:.1%} | {m['width']:.1%} | {chosen} | "
            f"{constant} |"
        )
    lines += [
        "",
        "Where it fails: outside the ranges above (other accelerators, more machines, faster "
        "networks) it answers by physics alone, with physics' own interval, and says so "
        "(`is_extrapolating`). It knows nothing of a program that behaves unlike all of these.",
        "",
    ]
    return "\n".join(lines)
