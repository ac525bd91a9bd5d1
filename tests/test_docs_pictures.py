"""Pictures of terminals in the documentation: the text, its colours, and nothing loaded."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from documentation import tool
from hypothesis import given
from hypothesis import strategies as st

PICTURE = tool("picture")
SIGNS = st.text(st.sampled_from("ab1 ─│⣀<&"), max_size=20)
PIECES = st.lists(st.tuples(st.sampled_from(["", "\x1b[0m", "\x1b[38;5;33m"]), SIGNS), max_size=6)


@given(st.lists(PIECES, min_size=1, max_size=5))
def test_a_terminal_s_letters_stand_in_their_columns(lines: list[list[tuple[str, str]]]) -> None:
    text = "\n".join("".join(code + piece for code, piece in line) for line in lines)
    root = ET.fromstring(PICTURE.terminal(text))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n").split("\n")
    drawn = [[" "] * 200 for _ in shown]
    wide, high = PICTURE._CELL
    for one in root.iter():
        if one.tag.endswith("text"):
            at = round(float(one.attrib["x"]) / wide) - 1
            row = drawn[round(float(one.attrib["y"]) / high) - 1]
            letters = one.text or ""
            row[at : at + len(letters)] = letters
            assert float(one.attrib["textLength"]) - wide * len(letters) < 0.1
    assert ["".join(row).rstrip() for row in drawn] == [line.rstrip() for line in shown]


def test_the_colours_are_the_terminal_s() -> None:
    assert [PICTURE._rgb(code) for code in (16, 33, 231, 232, 255)] == [
        "#000000", "#0087ff", "#ffffff", "#080808", "#eeeeee",
    ]  # fmt: skip
    assert "#0087ff" in PICTURE.terminal("\x1b[38;5;33mx\x1b[0m")


def test_every_picture_of_a_terminal_is_there_and_names_what_its_command_shows() -> None:
    page = PICTURE.PLOTS.read_text(encoding="utf-8")
    pictured = PICTURE.pictured(page)
    assert len(pictured) == len(re.findall(r"\]\(plots/", page)) >= 3
    for file, words in pictured.items():
        drawn = (PICTURE.PLOTS.parent / file).read_text(encoding="utf-8")
        assert "url(" not in drawn
        assert words[-1] == "--plot"


def test_the_picture_of_a_plot_is_what_the_verb_draws() -> None:
    """Numbers aside, of the cheapest one; the others are drawn by the same function."""
    page = PICTURE.PLOTS.read_text(encoding="utf-8")
    words = PICTURE.pictured(page)["plots/failures.svg"]
    kept = (PICTURE.PLOTS.parent / "plots/failures.svg").read_text(encoding="utf-8")
    assert PICTURE.named(kept) == PICTURE.named(PICTURE.terminal(PICTURE.plotted(words)))
    assert "What saves and failures add" in PICTURE.named(kept)
