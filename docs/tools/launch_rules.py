"""Write ``docs/generated/launch_rules.md``: the rules of each framework, with their sources.

``python docs/tools/launch_rules.py`` writes it from the rules of the planners, and ``--check``
says whether it is current (exit code 1). ``docs/handing_over.md`` includes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from advisor.planners.core.setup import STACKS, Stack, TrainingSetup
from advisor.planners.layouts.frameworks import RULES

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs" / "generated" / "launch_rules.md"


def tables() -> str:
    """Return a table of rules and sources for every framework."""
    lines = ["<!-- written by `python docs/tools/launch_rules.py`: do not edit -->"]
    lines += [
        "",
        "#### Stacks by name",
        "",
        "| `--stack` | splits by | ZeRO | schedules | starts |",
    ]
    lines += ["|---|---|---|---|---|", *map(stack_row, STACKS)]
    lines += [
        "",
        "#### Stacks by default",
        "",
        "| `--stack` | loss | recomputation | optimizer | weights, gradients | may offload | "
        "optimizer in backward | where its release says so |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|", *map(default_row, STACKS)]
    for framework, rules in RULES.items():
        lines += ["", f"#### `{framework}`", ""]
        lines += ["| asked of a layout | where the framework says so |", "|---|---|"]
        lines += [f"| {rule.reason} | `{rule.source}` |" for rule in rules]
    return "\n".join([*lines, ""])


def stack_row(stack: Stack) -> str:
    """Return what a named stack runs, as a row."""
    facts = STACKS[stack]
    degrees = ", ".join(facts.degrees) or "nothing"
    if facts.usual_degrees is not None:
        degrees += ", where asked or where nothing else fits"
    zero = ", ".join(map(str, facts.zero_stages)) + (
        " (0: one rank)" if facts.always_shards else ""
    )
    schedules = ", ".join(facts.schedules) if "pp" in facts.degrees else ""
    return f"| `{stack}` | {degrees} | {zero} | {schedules} | `{facts.framework}` |"


def default_row(stack: Stack) -> str:
    """Return what a named stack does where its user changes nothing, as a row."""
    facts = STACKS[stack]
    setup = TrainingSetup(**facts.setup)
    gradients = "bf16" if setup.weights == "bf16" else setup.gradients
    cells = (
        facts.loss, ", ".join(facts.recomputes), setup.optimizer, f"{setup.weights}, {gradients}",
        ", ".join(facts.offloads) or "nothing", "yes" if facts.updates_in_backward else "no",
    )  # fmt: skip
    return f"| `{stack}` | {' | '.join(cells)} | {facts.sources} |"


def main() -> int:
    """Write the tables, or say that they are stale."""
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == tables():
        return 0
    if "--check" in sys.argv[1:]:
        sys.stderr.write("run `python docs/tools/launch_rules.py`\n")
        return 1
    TARGET.write_text(tables(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
