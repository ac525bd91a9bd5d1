"""What may not grow: figures of how much there is to read, each with its bound.

``ratchets.txt`` beside this file has the bounds. ``python .ci/ratchets.py`` fails where a figure
is above its bound, and says what can be lowered; ``--lower`` lowers it. ``--since COMMIT`` also
fails where somebody raised a bound since then.

======================  =========================================================================
figure                  counts
======================  =========================================================================
code_lines              lines of the product's code, as ``size.py`` counts them
machine_classes         classes for a machine, or what it costs: ``MACHINES``, and every class
                        with four or more fields of ``MACHINE_FIELD``
state_equations         functions that add an optimizer's bytes to others where they name bytes
                        of weights or gradients
excepted_shapes         pairs of ``shapes.txt``
headed_files            files with headings (a comment of its own between blank lines): each holds
                        several ideas
to_record               functions ``to_record`` written by hand
annotated_options       options and arguments of typer written by hand
trip_...                what one question passes through (``trip.py``)
======================  =========================================================================
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shapes import fields
from size import PRODUCT, ROOT, code_lines, files

HERE = Path(__file__).resolve().parent
BOUNDS = HERE / "ratchets.txt"
# What an issue may add to the only figure that may grow, with a reason.
GROWS, MOST_ALLOWED = "code_lines", 1_500
MACHINES = {
    "Accelerator", "AcceleratorPart", "Cluster", "ClusterGroup", "Configuration",
    "ContainerOffer", "Device", "DeviceSheet", "Fleet", "InstanceType", "Instances", "MachineHere",
    "Machines", "NamedCluster", "Node", "Offer", "OfferColumns", "Place", "PriceColumns",
    "PriceRow", "RecordedMachine", "Rule", "TypeColumns", "TypeRow",
}  # fmt: skip
MACHINE_FIELD = re.compile(
    r"provider|instance_type|type_index|region(_index)?|pricing|is_spot|max_instances|.*usd_per_h"
    r"|accelerators?|accelerator_count|per_node|devices_per_node|node|device|host|architecture"
    r"|(most_)?vcpus|cores|core_speed|(accelerator_|host_)?memory_(gib|gb|bytes)"
    r"|network|network_(bytes_per_s|gbps|gbit_per_s)|(is_)?rdma"
    r"|intra|intra(_node)?_bytes_per_s|intra_node_link|link_bytes_per_s"
    r"|((fp32|bf16)_)?flop_per_s|memory_bytes_per_s"
)
OPTIMIZER = frozenset({"optimizer", "optimizer_bytes", "optimizer_state_bytes"})
STATE = re.compile(r"(weight|parameter|gradient|master|stored)s?_bytes|weights|gradients|moved")
OPTION = re.compile(r"\btyper\.(Option|Argument)\(|\bquantity\(")


@dataclass(slots=True)
class Ratchet:
    """A bound with what was allowed above it."""

    bound: int
    tolerance: float = 0.0  # as a share: what the libraries' versions make of it
    allowed: list[tuple[str, int, str]] = field(default_factory=list)  # issue, lines, reason

    @property
    def limit(self) -> int:
        """What must not be exceeded, the tolerance apart."""
        return self.bound + sum(lines for _, lines, _ in self.allowed)


def bounds(text: str) -> dict[str, Ratchet]:
    """Read ``name bound [tolerance]`` and ``allow issue lines reason``, a line each."""
    found: dict[str, Ratchet] = {}
    for line in text.splitlines():
        name, *cells = line.partition("#")[0].split(maxsplit=3) or [""]
        if name == "allow":
            issue, lines, reason = cells
            found[GROWS].allowed.append((issue, int(lines.replace(",", "")), reason))
        elif name:
            share = float(cells[1].rstrip("%")) / 100 if len(cells) > 1 else 0.0
            found[name] = Ratchet(int(cells[0].replace(",", "")), share)
    return found


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes below a node."""
    attributes = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return attributes | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def is_machine(node: ast.ClassDef) -> bool:
    """Whether a class is another noun for a machine or its price."""
    return node.name in MACHINES or sum(bool(MACHINE_FIELD.fullmatch(n)) for n in fields(node)) > 3


def is_state_equation(node: ast.FunctionDef) -> bool:
    """Whether a function sums what an optimizer keeps with weights or gradients."""
    sums = [
        one
        for one in ast.walk(node)
        if isinstance(one, ast.BinOp | ast.AugAssign) and isinstance(one.op, ast.Add)
    ]
    adds = any(OPTIMIZER & names_in(one) for one in sums)
    return adds and any(STATE.fullmatch(name) for name in names_in(node))


def is_option(node: ast.Subscript) -> bool:
    """Whether an annotation is a flag or an argument."""
    written = ast.unparse(node)
    return written.split("[")[0].endswith("Annotated") and bool(OPTION.search(written))


def is_headed(source: str) -> bool:
    """Whether a comment at the margin stands between blank lines."""
    return bool(re.search(r"\n\n(#[^\n]*\n)+\n", source))


def counted() -> dict[str, int]:
    """Return every figure of the files as they are."""
    found: Counter[str] = Counter()
    for path in (path for top in PRODUCT for path in files(top)):
        source = path.read_text(encoding="utf-8")
        found["code_lines"] += code_lines(source)
        found["headed_files"] += is_headed(source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found["machine_classes"] += is_machine(node)
            elif isinstance(node, ast.FunctionDef):
                found["state_equations"] += is_state_equation(node)
                found["to_record"] += node.name == "to_record"
            elif isinstance(node, ast.Subscript):
                found["annotated_options"] += is_option(node)
    excepted = (HERE / "shapes.txt").read_text(encoding="utf-8").splitlines()
    found["excepted_shapes"] = sum(bool(line.partition("# ")[0].strip()) for line in excepted)
    command = [sys.executable, str(HERE / "trip.py"), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        sys.exit(f"{told.stdout}{told.stderr}")
    return dict(found) | json.loads(told.stdout)


def too_much(have: dict[str, int], kept: dict[str, Ratchet]) -> list[str]:
    """Return a line for every figure above its bound."""
    return [
        f"{name}: {number:,}, {number - kept[name].limit:,} more than the bound of "
        f"{kept[name].limit:,}"
        for name, number in have.items()
        if number > kept[name].limit * (1 + kept[name].tolerance)
    ]


def too_little(have: dict[str, int], kept: dict[str, Ratchet]) -> list[str]:
    """Return a line for every bound that can be lowered."""
    return [
        f"{name}: {number:,}; its bound can fall by {kept[name].limit - number:,} "
        f"(python .ci/ratchets.py --lower)"
        for name, number in have.items()
        if number < kept[name].limit * (1 - kept[name].tolerance)
    ]


def raised(now: dict[str, Ratchet], before: dict[str, Ratchet]) -> list[str]:
    """Return a line for every bound that was raised other than by an issue's allowance."""
    found = []
    for name, old in before.items():
        new = now.get(name)
        if new is None:
            found.append(f"{name}: its bound is gone from {BOUNDS.name}")
            continue
        added = sum(lines for _, lines, _ in new.allowed if lines > 0) - sum(
            lines for _, lines, _ in old.allowed if lines > 0
        )
        if new.limit > old.limit + added:
            found.append(
                f"{name}: the bound was raised by {new.limit - old.limit - added:,}; "
                + ("write an allowance" if name == GROWS else "it may only fall")
            )
    return found


def over_allowed(now: dict[str, Ratchet]) -> list[str]:
    """Return a line for every issue that allows itself too much."""
    by_issue: Counter[str] = Counter()
    for issue, lines, _ in now[GROWS].allowed:
        by_issue[issue] += lines
    return [
        f"{issue} allows itself {lines:,} lines, more than {MOST_ALLOWED:,}"
        for issue, lines in by_issue.items()
        if lines > MOST_ALLOWED
    ]


def lower(have: dict[str, int], kept: dict[str, Ratchet]) -> None:
    """Write what there is as the bound, wherever that is less; all else stays as it stands."""
    text = BOUNDS.read_text(encoding="utf-8")
    for name, number in have.items():
        bound = kept[name].bound - max(kept[name].limit - number, 0)
        text = re.sub(rf"(?m)^({name} +)[-\d,]+", rf"\g<1>{bound:,}", text)
    BOUNDS.write_text(text, encoding="utf-8")


def stored(commit: str) -> dict[str, Ratchet]:
    """Return the bounds of a commit; none where it had none."""
    command = ["git", "show", f"{commit}:.ci/{BOUNDS.name}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return bounds(shown.stdout)


def main() -> int:
    """Hold what there is against the bounds."""
    have, kept = counted(), bounds(BOUNDS.read_text(encoding="utf-8"))
    if have.keys() != kept.keys():
        print(f"{BOUNDS.name} wants a bound for each of {', '.join(sorted(have))}")
        return 1
    if "--lower" in sys.argv:
        lower(have, kept)
        kept = bounds(BOUNDS.read_text(encoding="utf-8"))
    wrong = too_much(have, kept) + over_allowed(kept)
    if "--since" in sys.argv:
        wrong += raised(kept, stored(sys.argv[sys.argv.index("--since") + 1]))
    print("\n".join(wrong + too_little(have, kept)) or "no figure is above its bound")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
