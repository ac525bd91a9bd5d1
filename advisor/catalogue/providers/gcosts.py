"""Google Cloud, from gcosts' ``pricing.yml``: on-demand, spot and committed-use prices.

The file is YAML of one shape: nested mappings, two spaces a level, scalars at the leaves. That
much is read here, strictly, and no more: anchors, tags and flow collections are refused, so a
file cannot make the reader build what is not there. Prices of machine types stand under
``compute.instance.<type>.cost.<region>``: ``hour``, ``hour_spot``, ``month_1y``, ``month_3y``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from advisor.catalogue.providers.base import (
    FetchSession,
    RawFile,
    fault,
    price,
    priced,
    read_content,
)
from advisor.catalogue.rows import Listed, ListedOffer

_HOURS_PER_MONTH: Final = 730.0  # as Google bills a month, and as the file multiplies
_MAX_BYTES: Final = 64 << 20
_LINE: Final = re.compile(
    r"(?P<indent> *)(?P<key>'[^']*'|\"[^\"]*\"|[^\s#&*!|>{}\[\]'\"][^:]*):"
    r"(?: +(?P<value>.*))?"
)
# Keys of a machine type that count accelerators, and what they are called elsewhere.
_ACCELERATORS: Final = {
    "a100": "nvidia-tesla-a100", "a100-80gb": "nvidia-a100-80gb", "h100": "nvidia-h100-80gb",
    "h200": "nvidia-h200-141gb", "b200": "B200", "l4": "nvidia-l4", "t4": "nvidia-tesla-t4",
    "v100": "nvidia-tesla-v100", "p100": "nvidia-tesla-p100", "p4": "nvidia-tesla-p4",
    "k80": "nvidia-tesla-k80", "rtx6000": "RTX-PRO-6000",
}  # fmt: skip

Mapped = dict[str, Any]


class GCosts:
    """Google Cloud's machine types as gcosts collects them."""

    name = "gcp"
    source = "gcosts-pricing.yml"
    licence = "Apache-2.0"
    replaces = ()

    def __init__(self, base: str = "https://raw.githubusercontent.com") -> None:
        self._base = base

    def fetch(self, session: FetchSession) -> Sequence[RawFile]:
        """Download the file."""
        path = "Cyclenerd/google-cloud-pricing-cost-calculator/master/pricing.yml"
        url = f"{self._base}/{path}"
        return [session.get(url, name="pricing.yml", max_bytes=_MAX_BYTES)]

    def owns(self, path: str) -> bool:
        """Tell whether a file of a user's folder is for this adapter."""
        return path.rpartition("/")[2] in ("pricing.yml", "pricing.yml.gz")

    def parse(self, files: Sequence[RawFile], as_of: str) -> Listed:
        """Read the file."""
        rows: list[ListedOffer] = []
        for file in files:
            content = read_mapping(file)
            date = _made_on(content) or file.retrieved_at[:10] or as_of
            for name, machine in _instances(file, content).items():
                one = _type(name, machine)
                costs = machine.get("cost", {}).items()
                rows += [self._price(file, one, region, cost, date) for region, cost in costs]
                rows += [] if costs else [one]
        return tuple(rows)

    def _price(
        self, file: RawFile, one: ListedOffer, region: str, cost: Any, date: str
    ) -> ListedOffer:
        place = f"compute.instance.{one.instance_type}.cost.{region}"
        if not isinstance(cost, dict) or "hour" not in cost:
            fault(file, place, "has no price an hour")
        per_h = {
            column: price(file, f"{place}.{key}", cost[key]) / hours
            for column, key, hours in (
                ("on_demand_usd_per_h", "hour", 1.0),
                ("spot_usd_per_h", "hour_spot", 1.0),
                ("reserved_1y_usd_per_h", "month_1y", _HOURS_PER_MONTH),
                ("reserved_3y_usd_per_h", "month_3y", _HOURS_PER_MONTH),
            )
            if cost.get(key) not in (None, "", "0", "0.0")
        }
        return priced(self, one, region, per_h, date)


def _made_on(content: Mapping[str, Any]) -> str:
    """Return the ISO date in the file: ``about.timestamp`` is seconds since 1970."""
    about = content.get("about")
    stamp = about.get("timestamp", "") if isinstance(about, dict) else ""
    return datetime.fromtimestamp(int(stamp), UTC).date().isoformat() if stamp.isdigit() else ""


def _instances(file: RawFile, content: Mapping[str, Any]) -> Mapping[str, Any]:
    compute = content.get("compute")
    instances = compute.get("instance") if isinstance(compute, dict) else None
    if not isinstance(instances, dict) or not all(
        isinstance(one, dict) for one in instances.values()
    ):
        fault(file, "compute.instance", "is missing: this is not gcosts' pricing.yml")
    return instances


def _type(name: str, machine: Mapping[str, Any]) -> ListedOffer:
    known = [(key, machine[key]) for key in _ACCELERATORS if machine.get(key)]
    accelerator, count = known[0] if known else ("", "0")
    return ListedOffer(
        provider="gcp",
        instance_type=name,
        vcpus=_size(machine.get("cpu")),
        memory_gib=_size(machine.get("ram")),
        accelerator=_ACCELERATORS.get(accelerator, ""),
        accelerator_count=_size(count) or 0.0,
        source=GCosts.source,
    )


def _size(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def read_mapping(file: RawFile) -> Mapped:
    """Read nested mappings of scalars, all scalars as text.

    Raises CatalogueError if a line is something else, or a key stands twice.
    """
    try:
        lines = read_content(file).decode().splitlines()
    except UnicodeDecodeError as error:
        fault(file, "text", f"is not UTF-8: {error}")
    root: Mapped = {}
    open_at: list[tuple[int, Mapped]] = [(-1, root)]  # (indent of its key, mapping)
    block_indent: int | None = None  # inside a block of text, which is skipped
    for number, line in enumerate(lines, start=1):
        indent = len(line) - len(line.lstrip(" "))
        if block_indent is not None and (not line.strip() or indent > block_indent):
            continue
        block_indent = None
        if not line.strip() or line.lstrip().startswith("#") or line in ("---", "..."):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            fault(file, f"line {number}", f"is not 'key: value': {line.strip()[:40]!r}")
        while open_at[-1][0] >= indent:
            open_at.pop()
        key, value = match["key"].strip("'\" "), (match["value"] or "").strip()
        parent = open_at[-1][1]
        if key in parent:
            fault(file, f"line {number}", f"{key!r} appears twice")
        if not value:
            parent[key] = {}
            open_at.append((indent, parent[key]))
        elif value[0] in "|>":
            parent[key], block_indent = "", indent
        elif value[0] in "&*!{[":
            fault(file, f"line {number}", f"{value[:20]!r} is more than this reader admits")
        else:
            parent[key] = value.strip("'\"")
    return root
