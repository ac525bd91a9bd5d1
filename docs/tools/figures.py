"""Figures in prose are generated: what a page quotes of a protocol is taken from what is stored.

``python docs/tools/figures.py [--check]`` writes the marked figures of every page again from
``datasets/accuracy``, or says which are stale. On GitHub a mark is not seen:

    half of the answers err by less than <!--=gpu.median-->6.3<!--=--> %
    on a K80 <!--=instance.groups/K80/mean-->25.7<!--=--> % in the mean

A mark names a protocol of `advisor validate`, then ``mean``, ``median``, ``p90``, ``coverage``,
``width`` (of intervals, in ln) or ``rows``; after ``groups/NAME/`` or ``baselines/NAME/`` the same
of a group or of a simpler rule, and ``figures/NAME`` is what the protocol prints besides.

A per cent figure that is typed by hand beside a protocol's name is refused: in its paragraph, list
item or row of a table. What is of another source says so there: <!-- not printed: SOURCE -->.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
STORED: Final = ROOT / "datasets" / "accuracy"
_MARK: Final = re.compile(r"<!--=(?P<protocol>[a-z-]+)\.(?P<key>.+?)-->(?P<shown>.*?)<!--=-->")
_SHORT: Final = {
    "mean": "mape_fraction", "median": "median_ape_fraction", "p90": "p90_ape_fraction",
    "coverage": "coverage", "width": "width", "rows": "rows",
}  # fmt: skip
_PERCENT: Final = re.compile(r"\d(?:\.\d+)?(?: |\u00a0)?%")
_OTHER: Final = re.compile(r"<!-- not printed: \S.*? -->")
# What no figure is typed in: code, tables that `make figures` writes.
_SKIPPED: Final = re.compile(
    r"^```.*?^```$|<!-- figures:begin -->.*?<!-- figures:end -->", re.M | re.S
)
# An interval's nominal share is asked for, not measured.
_NOMINAL: Final = re.compile(r"\b(?:80|90) %(?: prediction)? intervals?\b|\b90 % means\b")


@cache
def record(protocol: str) -> dict[str, Any]:
    """Return what a protocol gave on what ships; else, with data that were fetched.

    Raises SystemExit if no figures of it are stored.
    """
    for place in (STORED, STORED / "fetched"):
        if (file := place / f"{protocol}.json").exists():
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["record"]
            return found
    raise SystemExit(f"no protocol {protocol!r} in {STORED}: see `advisor validate`")


def protocols() -> set[str]:
    """Return the names of the protocols whose figures are stored."""
    return {file.stem for file in STORED.rglob("*.json")}


def value(protocol: str, key: str) -> str:
    """Return a stored figure as a page shows it: per cent without the sign, or a count.

    Raises SystemExit if the protocol's record has no such figure.
    """
    place, _, rest = key.partition("/")
    try:
        if place == "figures":
            return _shown(float(record(protocol)["figures"][rest]), "mean")
        name, _, statistic = rest.rpartition("/")
        if place == "groups":
            found = next(one for one in record(protocol)["groups"] if one["group"] == name)
        else:
            found = record(protocol)["baselines"][name] if rest else record(protocol)["overall"]
        statistic = statistic or key
        return _shown(float(found[_SHORT[statistic]]), statistic)
    except (KeyError, StopIteration, TypeError) as error:
        raise SystemExit(f"{protocol} has no figure {key!r}") from error


def _shown(number: float, statistic: str) -> str:
    if statistic == "rows":
        return f"{number:,.0f}"
    if statistic == "width":
        return f"{number:.2f}"
    return f"{100 * number:.0f}" if statistic == "coverage" else f"{100 * number:.1f}"


def rewritten(text: str) -> str:
    """Return a page with its marked figures as they are stored."""
    return _MARK.sub(
        lambda m: f"<!--={m[1]}.{m[2]}-->{value(m['protocol'], m['key'])}<!--=-->", text
    )


def hand_typed(text: str) -> Iterator[str]:
    """Return the paragraphs, list items and rows that type a per cent figure of a protocol."""
    names = "|".join(sorted(protocols(), key=len, reverse=True))
    named = re.compile(rf"`(?:{names})`|\bvalidate (?:{names})\b(?!-)")
    for paragraph in re.split(r"\n\s*\n", _SKIPPED.sub("", text)):
        for part in re.split(r"\n(?=\s*(?:[-*|] ?|\d+\. ))", paragraph):
            typed = _NOMINAL.sub("", _MARK.sub("", part))
            if named.search(part) and _PERCENT.search(typed) and not _OTHER.search(part):
                yield " ".join(part.split())


def pages() -> list[Path]:
    """Return what a reader is shown and a person writes."""
    found = [page for page in (ROOT / "docs").rglob("*.md")
             if page.parent.name not in ("cli", "generated")]  # fmt: skip
    found += [ROOT / "README.md", ROOT / "trained_models" / "README.md"]
    return sorted([*found, *(ROOT / "datasets").rglob("README.md")])


def main() -> int:
    """Write the marked figures, or say which are stale; name those that are typed by hand."""
    problems = []
    for page in pages():
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
        if (now := rewritten(text)) != text:
            if "--check" in sys.argv[1:]:
                problems.append(f"{name}: not what is stored: python docs/tools/figures.py")
            else:
                page.write_text(now, encoding="utf-8")
                sys.stdout.write(f"{name}: written\n")
        problems += [f"{name}: typed by hand: {part[:160]}" for part in hand_typed(now)]
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
