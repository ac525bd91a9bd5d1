"""Models that are known by their names: the hub's ids, and short forms of them, in any case."""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.collectors import bounded
from advisor.errors import UsageError

_FILE: Final = "download its config.json from the hub and give the file: --model path/config.json"
# How copies of a model's weights are marked: quantised for bitsandbytes (Unsloth), in 16 bits.
_COPY: Final = re.compile(r"(-unsloth)?-bnb-4bit$|-(bf16|fp16|BF16|FP16)$")
_SPACING: Final = str.maketrans("", "", "-_ ")


def named_model(path: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the model that is named; None where the name is a path, which wins over any name.

    Its name is the last part of its id on the hub, its configuration what matters of its file.

    Raises UsageError if there is no such model; the hint has the nearest names, and says which
    file describes any other.
    """
    text = path.as_posix()
    is_path = path.suffix == ".json" or text.startswith((".", "/", "~")) or text.count("/") > 1
    if is_path or os.path.exists(text):
        return None
    found = _index().get(_key(text))
    if found is None and (held := _in_hub_cache(text)) is not None:
        return text.rpartition("/")[2], held
    # A copy under another maker has the dimensions, whose name says what else was done to it.
    found = found or _index().get(_key(_COPY.sub("", text.rpartition("/")[2])))
    if found is None:
        raise UsageError(f"no model is known as {text!r}", hint=_nearest(text))
    known, row = found
    kind = {"model_type": row["model_type"]} if row["model_type"] else {}
    return known.rpartition("/")[2], kind | json.loads(row["config"])


def _in_hub_cache(name: str) -> dict[str, Any] | None:
    """Return the configuration of a model that Hugging Face's own tools have downloaded here.

    Its folder is that of ``huggingface_hub.constants`` (1.2): ``HF_HUB_CACHE``, ``HF_HOME``.
    """
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    found = folder / f"models--{name.replace('/', '--')}" / "snapshots"
    configs = sorted(found.glob("*/config.json")) if "/" in name and ".." not in name else []
    return bounded.read_object(configs[-1]) or None if configs else None


def names_from(start: str) -> list[str]:
    """Return the names that begin with a text in any case, which shells want repeated as it is.

    A text with a slash begins with the maker.
    """
    ids = sorted({known for known, _ in _index().values()}, key=str.lower)
    names = dict.fromkeys(one if "/" in start else one.rpartition("/")[2] for one in ids)
    length = len(start)
    return [start + one[length:] for one in names if one[:length].lower() == start.lower()]


def _nearest(text: str) -> str:
    """Return what to do about a name that is not in the table: what begins so, or is alike."""
    index = _index()
    close: dict[str, str] = {}
    for key in (_key(text), _key(text.rpartition("/")[2])):
        begun = sorted((one for one in index if one.startswith(key)), key=len)
        for near in (*begun, *difflib.get_close_matches(key, index, n=6)):
            known, row = index[near]
            close.setdefault(row["id"], known.rpartition("/")[2])
    meant = " or ".join([*close.values()][:3])
    return f"did you mean {meant}? If not, {_FILE}" if meant else _FILE


def _key(name: str) -> str:
    """Return a name without what people write in many ways: case, hyphens, underscores."""
    return name.lower().translate(_SPACING)


@cache
def _index() -> dict[str, tuple[str, dict[str, str]]]:
    """Return the table's rows by key, each with the id on the hub that the key stands for."""
    path = data.root("datasets") / "models" / "models.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for row in rows:
        for name in (row["id"], *row["other_names"].split()):
            known = name if "/" in name else row["id"]
            for one in (name, name.rpartition("/")[2]):
                found.setdefault(_key(one), (known, row))
    return found
