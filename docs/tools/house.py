"""Draw ``docs/house.svg``: the rooms of the house, from the import contracts in pyproject.toml.

``python docs/tools/house.py`` writes it, ``--check`` says whether it is current (exit code 1).
Arrows need not be drawn: a room may import what lies below it, and nothing above.
"""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final

from advisor.show.palette import SURFACES

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs" / "house.svg"
WIDTH, ROOM, GAP, TEXT = 860, 34, 6, 13
# What each room is for, in a few words; a room of the contract without words fails the check.
WORDS: Final = {
    "cli": "verbs: parse, call, show",
    "export": "the answer as files that other tools run",
    "gate": "what is submitted, judged before it is sent",
    "ui": "the answer in a browser, on loopback",
    "simulate": "replay a job on spot, queues, elastic workers",
    "api": "recommend, predict from Python",
    "lab": "beside the product: questions with their truth, scores, fits",
    "train": "fit constants and learned predictors again",
    "report": "the answer as one page",
    "show": "records as tables, charts",
    "words": "what people read of records",
    "advice": "what would make a job cheaper: cures, priced",
    "rank": "constraints, front, reasons, pruning",
    "estimate": "this job on these machines; a way of training a file",
    "learned": "estimators, intervals, registry",
    "records": "labelled runs, importers",
    "machines": "fleet, clusters, hosts; no prices",
    "jobs": "work + length + what feeds it",
    "ask": "flags, files, keywords",
    "recipes": "files of training tools as answers to options",
    "catalogue": "offers, prices, networks, sources",
    "answer": "the one record of an answer",
    "quantities": "units read and printed",
    "providers": "names, bills and tools of the clouds",
    "data": "where the packaged data lie",
    "errors": "what, hint, exit code",
    "faces": "what a room offers, imported when it is used",
    "collectors": "what was seen of a script: sampler outside, hooks inside",
    "planners": "systems of the literature: pure, no files",
}
# Of the collectors no contract is written down: their rooms.
COLLECTORS: Final = (("run",), ("derive",), ("watch",), ("hooks", "inject"), ("format",))
COLOURS: Final = {
    part: SURFACES[name][0]
    for part, name in {
        "roof": "accent", "floor": "accent-soft", "ground": "mark", "line": "accent",
        "paper": "paper", "text": "text", "rooms": "surface",
    }.items()
}  # fmt: skip


def floors() -> tuple[list[list[str]], list[list[str]]]:
    """Return the layers of ``advisor`` and of the planners, top first, each with its rooms."""
    contracts: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
    layered = [one for one in contracts if one["type"] == "layers"]
    house, planners = (
        [
            [room.strip().removeprefix("advisor.") for room in layer.split("|")]
            for layer in one["layers"]
        ]
        for one in layered[:2]
    )
    return house, planners


def drawing() -> str:
    """Return the picture as SVG."""
    house, planners = floors()
    missing = {room for layer in house for room in layer} - set(WORDS)
    missing |= {
        name
        for layer in COLLECTORS
        for name in layer
        if not any((ROOT / "collectors" / f"{name}{end}").exists() for end in ("", ".py"))
    }
    if missing:
        raise SystemExit(
            f"docs/tools/house.py knows too little, or too much, of: {', '.join(sorted(missing))}"
        )
    parts: list[str] = []
    lab, roof, *floors_, ground, faces = house
    y = _roof(parts, roof)
    for layer in floors_:
        y = _row(parts, y, layer, COLOURS["floor"])
    y = _ground(parts, y + GAP, ground, planners)
    y = _row(parts, y, [*faces, *lab], COLOURS["paper"])
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + GAP}" '
        'font-family="sans-serif" role="img">\n<title>The rooms of the house: a room imports what '
        "lies below it</title>\n"
        f'<rect width="{WIDTH}" height="{y + GAP}" fill="{COLOURS["paper"]}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _roof(parts: list[str], rooms: list[str]) -> int:
    top, foot = GAP, 78
    points = f"{WIDTH / 2},{top} {WIDTH - GAP},{foot} {GAP},{foot}"
    parts.append(f'<polygon points="{points}" fill="{COLOURS["roof"]}"/>')
    parts.append(_text(WIDTH / 2, 52, rooms[0], COLOURS["paper"], weight="bold"))
    parts.append(_text(WIDTH / 2, 69, WORDS[rooms[0]], COLOURS["paper"]))
    return foot + GAP


def _row(parts: list[str], y: int, rooms: list[str], colour: str) -> int:
    width = (WIDTH - 2 * GAP - (len(rooms) - 1) * GAP) / len(rooms)
    for place, room in enumerate(rooms):
        x = GAP + place * (width + GAP)
        parts.append(_box(x, y, width, ROOM, colour))
        parts.append(_label(x + width / 2, y + ROOM / 2 + 5, room, WORDS[room]))
    return y + ROOM + GAP


def _ground(parts: list[str], y: int, rooms: list[str], planners: list[list[str]]) -> int:
    """Draw the ground: each of its rooms whole in itself, the planners with their own floors."""
    inner = 24
    height = 44 + len(planners) * (inner + 4)
    width = (WIDTH - 3 * GAP) / 2
    for place, room in enumerate(rooms):
        x = GAP + place * (width + GAP)
        parts.append(_box(x, y, width, height, COLOURS["ground"]))
        parts.append(_text(x + width / 2, y + 18, room, COLOURS["text"], weight="bold"))
        parts.append(_text(x + width / 2, y + 34, WORDS[room], COLOURS["text"]))
        inside = planners if room == "planners" else COLLECTORS
        _inner_floors(parts, x, y + 40, width, inside, inner)
    return y + height + GAP


def _inner_floors(
    parts: list[str], x: float, y: int, width: float, floors: Any, height: int
) -> None:
    for number, layer in enumerate(floors):
        top = y + number * (height + 4)
        parts.append(_box(x + GAP, top, width - 2 * GAP, height, COLOURS["rooms"]))
        parts.append(_text(x + width / 2, top + 16, "  ·  ".join(layer), COLOURS["text"], size=11))


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
        f'fill="{colour}" stroke="{COLOURS["line"]}" stroke-width="0.8"/>'
    )


def _label(x: float, y: float, name: str, words: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{TEXT}" '
        f'fill="{COLOURS["text"]}"><tspan font-weight="bold">{escape(name)}</tspan>'
        f'<tspan dx="8" font-size="{TEXT - 2}">{escape(words)}</tspan></text>'
    )


def _text(
    x: float, y: float, words: str, colour: str, *, weight: str = "normal", size: int = TEXT
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{size}" '
        f'font-weight="{weight}" fill="{colour}" xml:space="preserve">{escape(words)}</text>'
    )


def main(arguments: list[str]) -> int:
    """Write the picture, or with ``--check`` say whether it is current."""
    wanted = drawing()
    is_current = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == wanted
    if "--check" in arguments:
        sys.stderr.write("" if is_current else "not current: docs/house.svg\n")
        return 0 if is_current else 1
    TARGET.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
