"""The one form in which a fitted model is kept: its files, ``metrics.json`` and ``card.md``.

``metrics.json`` begins with where the model comes from: ``command`` (what was run, whole),
``day``, and ``inputs`` (every table that was read and the SHA-256 of its normalised content).
Running that command again writes the same bytes: fits have no random part without a seed, rows
are sorted, and numbers are rounded to ``DIGITS`` significant digits, fewer than the fits have
converged to. ``advisor train check`` does run it again and compares.

``card.md`` says the same to a reader: origin, what the model is (``about.md`` of the packaged
folder, written by hand, without figures of the fit), and the metrics as tables.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final

import numpy as np

from advisor.ask import option
from advisor.errors import UsageError
from advisor.learned import FEATURES, LEAST_ROWS, NAMES
from advisor.quantities import percent_text
from advisor.records import RunRecord

SCHEMA_VERSION: Final = 1
ABOUT: Final = "about.md"
CARD: Final = "card.md"
METRICS: Final = "metrics.json"
ORIGIN: Final = ("schema_version", "command", "day", "inputs")  # of ``metrics.json``

day_option: Final = partial(
    option, "Day of the fit as the card states it, YYYY-MM-DD (default: today)."
)
out_option: Final = partial(option, "Folder to write to (default: the packaged one).")


def origin(
    verb: str, inputs: Mapping[str, str], day: str | None, given: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what ``metrics.json`` of a model begins with that is fitted now.

    ``command`` can be run again; ``given`` are its options that change the result (``option``),
    not the folder that it writes to. Raises UsageError if the day is none.
    """
    stated = day_of(day)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["advisor", "train", verb, *given, "--day", stated]),
        "day": stated,
        "inputs": dict(sorted(inputs.items())),
    }


def day_of(text: str | None) -> str:
    """Return a day in its one form; today for None.

    Raises UsageError if the text is no day.
    """
    if text is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(
            f"cannot read {text!r} as a day", hint="write it as 2026-11-22"
        ) from error


def heading(name: str, metrics: Mapping[str, Any]) -> list[str]:
    """Return the first lines of a card; what was fitted in memory alone has no origin."""
    if "command" not in metrics:
        return [f"# {name}", ""]
    return [
        f"# {name}",
        "",
        f"Fitted on {metrics['day']} by `{metrics['command']}`; `advisor train check {name}` runs "
        "that again and compares.",
        "",
        "| input | SHA-256 of its rows |",
        "|---|---|",
        *(f"| {table} | `{digest}` |" for table, digest in sorted(metrics["inputs"].items())),
        "",
    ]


# What a user can compare a job or a machine with; the hull watches more.
_RANGES: Final = (
    "vcpus", "network_gbit_per_s", "parameters", "batch", "flop_per_step", "step_time_s",
)  # fmt: skip
_KINDS: Final = ("one machine", "several machines", "one machine with accelerators",
                 "several machines with accelerators")  # fmt: skip
# Is it of costs -> by whom and about what it is asked, and what its answer is.
_ASKED: Final = {
    False: ("`advisor recommend` asks it about a candidate",
            "There it multiplies the physical estimate of the step, and its error is added to the "
            "interval."),
    True: ("`advisor predict --json` asks it (`cost_direct_usd`) about machines with a price",
           "There it says what the whole job costs, without saying how long it takes."),
}  # fmt: skip
_SPLITS: Final = {
    "job": "left-out programs (each in turn; weights and intervals from the others)",
    "both": "left-out programs (each in turn; weights and intervals from the others)",
    "instance": "left-out instance types (each in turn; their programs are known)",
    "random": "left-out runs (siblings stay in the fit, which flatters)",
}


def card(trained: Any, records: Sequence[RunRecord]) -> str:
    """Return the card of a model that was fitted on one machine."""
    statuses = Counter(record.status for record in records)
    noisy = sum(r.facts.get("is_noisy") == 1.0 for r in records)
    told = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
    return "\n".join([
        *_heading(trained),
        f"- Runs: {told}; {noisy} of them noisy, which are neither fitted nor scored. Censored "
        "runs count as lower bounds; failed ones have no time and are not fitted.",
        f"- Sources: {', '.join(sorted({r.source for r in records}))}.",
        f"- Programs: {', '.join(sorted({r.job.family for r in records}))}.",
        f"- Instance types: {', '.join(sorted({r.instance_key for r in records}))}.",
        *_drift(records),
        *_chosen(trained),
        *_errors(trained),
        *_coverage(trained),
    ])  # fmt: skip


def _drift(records: Sequence[RunRecord]) -> list[str]:
    """Say how far the machine itself moved, where that was seen: nothing can learn that."""
    seen = [float(r.facts["cpu_ratio"]) for r in records if "cpu_ratio" in r.facts]
    if len(seen) < LEAST_ROWS:
        return []
    low, middle, high = np.quantile(seen, [0.1, 0.5, 0.9])
    return [
        f"- The machine drifts: over {len(seen)} runs of one thread a step took {low:.2f} to "
        f"{high:.2f} times the CPU time of the same step in the partial run (p10 to p90, median "
        f"{middle:.2f}), which no feature tells."
    ]


def spread_card(trained: Any, files: int) -> str:
    """Return the card of a model that was fitted on a cluster: nobody has seen all runs."""
    return "\n".join([
        *_heading(trained),
        f"- Runs of {files} files, each read by one worker; runs that were cut short left aside.",
        "- One program in five was left out of the fit: errors and intervals are those of them.",
        *_chosen(trained),
        *_errors(trained),
        *_coverage(trained),
    ])  # fmt: skip


def _heading(trained: Any) -> list[str]:
    about, found = trained.about, trained.metrics
    return [
        *heading(trained.name, found),
        f"Seed {found['seed']}, {about['records']} runs (data {about['data_sha256'][:12]}), "
        f"target `{trained.target}`.",
        "",
    ]


def _chosen(trained: Any) -> list[str]:
    weights = ", ".join(f"{k} {v:.2f}" for k, v in trained.metrics["weights"].items())
    return [f"- Chosen: {trained.metrics['chosen']}, weights {weights}.", ""]


def _errors(trained: Any) -> list[str]:
    found = trained.metrics
    lines = [
        f"Errors on {_SPLITS[found['split']]}:",
        "",
        "| estimator | MAPE | median | p90 | coverage of 90 % | half-width | regret | constant |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in found["left_out"]:
        m, regret = result["overall"], result["top1_regret"]
        cells = [
            result["name"], *(percent_text(m[f"{n}_fraction"], 1) for n in ("mape", "median_ape",
                                                                   "p90_ape")),
            "-" if m["coverage"] is None else percent_text(m['coverage'], 1),
            "-" if m["width"] is None else percent_text(m['width'], 1),
            "-" if regret is None else f"{regret['model']:.3f}",
            "-" if regret is None else f"{regret['constant']:.3f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if "both" in found:
        lines += ["", f"Program and instance type left out: MAPE "
                      f"{percent_text(found['both']['mape_fraction'], 1)}."]  # fmt: skip
    return [*lines, ""]


def _coverage(trained: Any) -> list[str]:
    """Say what the model covers, in units, and what happens elsewhere."""
    hull: Mapping[str, Any] = trained.about["hull"]
    asked, answer = _ASKED[trained.target == "cost_over_anchor"]
    lines = [
        "## Where it is used",
        "",
        f"{asked} whose job, profile and machines lie in the "
        "ranges below (and those of the other features that `features.json` lists), or as near to "
        "them as left-out programs lie to the others (`reach`, in ranges of a feature), on an "
        "accelerator of which it has seen runs. " + answer,
        "",
    ]
    for place, has_rows in enumerate(hull["has_rows"]):
        if has_rows:
            bounds = [_range(hull, place, name) for name in _RANGES]
            reach = f"reach {hull['reach'][place]:.2f}"
            lines.append(f"- {_KINDS[place]}: {', '.join([*(b for b in bounds if b), reach])}")
    runs: Mapping[str, int] = trained.about["accelerators"]
    accelerators = ", ".join(n or "none" for n, count in runs.items() if count >= LEAST_ROWS)
    return [
        *lines,
        f"- accelerators (ten runs at least): {accelerators}",
        "",
        "## Where it fails",
        "",
        "- Outside these ranges physics alone answers, with its own interval; nothing is learned "
        "of larger jobs, faster networks or other accelerators.",
        "- All its runs were made on the machines named above: how another processor differs from "
        "them is the physical model's word, not this one's.",
        "- A program that behaves unlike all of these is answered like the nearest of them; the "
        "interval is what that cost on the programs left out.",
        "- A job with a real run of its own noted (`advisor runs actual`) is not asked about: "
        "that run says more.",
        "",
    ]


def _range(hull: Mapping[str, Any], place: int, name: str) -> str:
    column = NAMES.index(name)
    feature = FEATURES[column]
    low, high = hull["lows"][place][column], hull["highs"][place][column]
    if low is None or high is None:
        return ""
    if feature.is_log:
        low, high = math.exp(low), math.exp(high)
    return f"{name} {low:.3g} to {high:.3g} {feature.unit}".removesuffix(" -")
