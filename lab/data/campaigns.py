"""Published training runs: what was trained, on what, and the device-hours that it took.

Two forms are read, told by their columns: our own (``datasets/measurements/campaigns``, whose
README explains every column) and the one of the published collection, whose names and units
``PUBLISHED`` turns into ours. No value is changed but for its unit.

``python -m advisor.lab.data.campaigns PUBLISHED OURS`` writes our form.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.collectors import atomic, bounded
from advisor.errors import ModelError, UsageError

# Our column -> the published one, and what its numbers are multiplied by.
PUBLISHED: Final[Mapping[str, tuple[str, float]]] = {
    "parameters": ("parameters_b", 1e9),
    "tokens": ("tokens_b", 1e9),
    "global_batch_tokens": ("global_batch_tokens_m", 1e6),
    "sharding": ("zero_or_fsdp", 1.0),
    "device_h": ("gpu_hours", 1.0),
    "hours_basis": ("gpu_hours_basis", 1.0),
    "tokens_per_s_per_device": ("tokens_per_s_per_gpu", 1.0),
    "mfu_fraction": ("mfu_pct", 0.01),
    "source": ("source_url_or_repo_path", 1.0),
    "architecture_source": ("arch_source", 1.0),
}
# What tells a table of published runs.
COLUMNS: Final = frozenset({"campaign", "model", "accelerator", "accelerators", "year"})
HOURS: Final = frozenset({"device_h", "gpu_hours"})
_HINT: Final = "the columns are explained in datasets/measurements/campaigns/README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One published training run; None where its source does not say."""

    campaign: str
    model: str
    family: str  # runs of the same makers and software: left out together
    year: int
    device_h: float  # published hours of all devices together [h]
    kind: str  # ``run``, ``run, upper bound``, ``step time x steps`` or ``estimate or projection``
    # ``yes``, ``no`` or ``unknown``: whether stops and evaluation are in the hours
    includes_downtime: str
    accelerator: str  # as published, e.g. ``A100``.
    parameters: float | None = None
    tokens: float | None = None
    global_batch_tokens: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocabulary: int | None = None
    is_gated: bool = False
    # tokens of a sample; the model's longest where the source gives no other
    sequence: int | None = None
    accelerator_memory_gb: float | None = None  # as sold [GB]
    accelerators: int | None = None
    # precision, interconnect, framework, tp, pp, cp, sharding, recompute: as published; empty
    # where unknown
    precision: str = ""
    interconnect: str = ""
    framework: str = ""
    # tokens_per_s_per_device, mfu_fraction: of the steps, where published [tokens/s]
    tokens_per_s_per_device: float | None = None
    mfu_fraction: float | None = None
    tp: str = ""
    pp: str = ""
    cp: str = ""
    sharding: str = ""
    recompute: str = ""

    @property
    def is_whole_run(self) -> bool:
        """Whether the hours are of a run as it was, not of its steps alone."""
        return self.kind.startswith("run") and self.includes_downtime != "no"


def packaged_path() -> Path:
    """Return where the packaged table lies."""
    return data.root("datasets") / "measurements" / "campaigns" / "campaigns.csv"


def read_packaged() -> list[Campaign]:
    """Read the packaged table; as ``read_campaigns``."""
    return read_campaigns(packaged_path())


def read_campaigns(path: Path, families: Mapping[str, str] | None = None) -> list[Campaign]:
    """Read a table of published runs in either form.

    ``families``: family by campaign, for a table without a column ``family``; a campaign that is
    not named gets the first word of its name.

    Raises UsageError if the table cannot be read or lacks a column. Raises ModelError if a number
    is no number; the message names row and column.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(bounded.csv_tables(file))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the table {path}: {error}", hint="name a CSV file"
        ) from None
    lacking = COLUMNS - set(rows[0]) if rows else COLUMNS
    if lacking or not HOURS & set(rows[0]):
        raise UsageError(
            f"{path} is not a table of training runs; it lacks: "
            + ", ".join(sorted(lacking) or sorted(HOURS)),
            hint=_HINT,
        )
    found = [_campaign(row, f"{path.name}: row {i}") for i, row in enumerate(rows, start=2)]
    known = families or {}
    return [
        c if c.family else replace(c, family=known.get(c.campaign, first_word(c.campaign)))
        for c in found
    ]


def first_word(campaign: str) -> str:
    """Return the letters that a name begins with, in lower case.

    >>> first_word("Llama 3.1 8B training"), first_word("LLaMA-1 7B pre-training")
    ('llama', 'llama')
    """
    word = re.match(r"\W*([^\W\d_]+)", campaign)
    return word[1].lower() if word else campaign


def without_repetitions(campaigns: Sequence[Campaign]) -> list[Campaign]:
    """Return the runs without those that state the hours of an earlier row once more."""
    found: dict[tuple[object, ...], Campaign] = {}
    for c in campaigns:
        same = (c.family, c.layers, c.hidden, c.tokens, c.accelerator, c.accelerators, c.device_h)
        found.setdefault(same if c.layers and c.tokens else (c.campaign,), c)
    return list(found.values())


def _campaign(row: Mapping[str, str | None], where: str) -> Campaign:
    values: dict[str, Any] = {}
    for field in fields(Campaign):
        text, scale = _text(row, field.name)
        kind = str(field.type).removesuffix(" | None")
        if kind == "str":
            values[field.name] = text
        elif kind == "bool":
            values[field.name] = text.lower() in ("yes", "true", "1")
        elif text:
            number = _number(text, scale, f"{where}, column {field.name}")
            values[field.name] = round(number) if kind == "int" else number
        elif "None" not in str(field.type):
            raise ModelError(f"{where}, column {field.name}: nothing is given", hint=_HINT)
    return Campaign(**values)


def _text(row: Mapping[str, str | None], name: str) -> tuple[str, float]:
    if name in row or name not in PUBLISHED:
        return (row.get(name) or "").strip(), 1.0
    published, scale = PUBLISHED[name]
    return (row.get(published) or "").strip(), scale


def _number(text: str, scale: float, where: str) -> float:
    # A phase each ("128/512"): the first, which most steps of such a run have.
    first = text.split("/")[0]
    try:
        number = float(f"{float(first) * scale:.12g}")  # 8.03 x 1e9 is 8030000000
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ModelError(f"{where}: {text!r} is not a number of 0 or more", hint=_HINT)
    return number


def convert(published: Path, out: Path) -> int:
    """Write our form of a published table; return its rows.

    Texts are kept as they are, columns are renamed and numbers change their unit. Families are set
    by hand: rows that are in ``out`` already keep theirs, a new row gets its first word.
    """
    family = {c.campaign: c.family for c in read_campaigns(out)} if out.exists() else {}
    with published.open(newline="", encoding="utf-8") as file:
        rows = list(bounded.csv_tables(file))
    ours = {theirs: (name, scale) for name, (theirs, scale) in PUBLISHED.items()}
    made = io.StringIO()
    names = ["campaign", "family", *(ours.get(c, (c, 1.0))[0] for c in list(rows[0])[1:])]
    writer = csv.DictWriter(made, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        converted = {"family": family.get(row["campaign"], first_word(row["campaign"]))}
        for theirs, text in row.items():
            name, scale = ours.get(theirs, (theirs, 1.0))
            converted[name] = text if scale == 1.0 or not text else f"{float(text) * scale:.9g}"
        writer.writerow(converted)
    atomic.write_text(out, made.getvalue())
    return len(rows)


if __name__ == "__main__":
    sys.stdout.write(f"{convert(Path(sys.argv[1]), Path(sys.argv[2]))} rows\n")
