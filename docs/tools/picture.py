"""Draw the pictures of the documentation from real answers.

``python docs/tools/picture.py`` asks the README's last `advisor recommend` for
``docs/recommendation.svg`` and what ``docs/answer.md`` shows for its pictures of terminals;
``--check`` says whether the former is current, numbers aside (exit code 1).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

from advisor.show.palette import SURFACES

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs" / "recommendation.svg"
README: Final = ROOT / "README.md"
PLOTS: Final = ROOT / "docs" / "answer.md"
_PICTURED: Final = re.compile(r"!\[advisor ([^\]]*--plot)\]\((plots/[a-z-]+\.svg)\)")
_WIDTH: Final = 80
_FRAME: Final = (
    "text{{font:14px Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:{text}}}"
    ".paper{{fill:{paper}}}{styles}"
)
_CELL: Final = (8.43, 18)  # width and height of a letter of 14 px [px]
_ESCAPE: Final = re.compile(r"\x1b\[([0-9;]*)m")


def command(text: str) -> list[str]:
    """Return the words of the last `advisor recommend` that a page shows."""
    found = re.findall(r"^\$ advisor (recommend .*)$", text, re.M)
    return str(found[-1]).split()


def answered(words: list[str], **variables: str) -> str:
    """Return what the command line prints."""
    asked = [sys.executable, "-m", "advisor.cli", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | variables
    done = subprocess.run(
        asked, cwd=ROOT, capture_output=True, encoding="utf-8", check=True, env=environment
    )
    return done.stdout


def drawn() -> str:
    """Return the picture of what the README's command answers now, the asker's machine aside."""
    from advisor.show.answer_charts import front_chart
    from advisor.show.pictures import svg

    record: Any = json.loads(answered([*command(README.read_text(encoding="utf-8")), "--json"]))
    record["here"] = None  # the speed of this machine is measured anew: it depends on its load
    return svg(front_chart(record, names=True))


def named(picture: str) -> list[str]:
    """Return what the picture names: everything but its numbers, in order."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return [text for text in texts if re.search(r"[A-Za-z]", text)]


def pictured(page: str) -> dict[str, list[str]]:
    """Return the words of the command behind each picture of a terminal that a page shows."""
    return {file: shlex.split(words) for words, file in _PICTURED.findall(page)}


def terminal(text: str) -> str:
    """Return lines with colours, as a terminal shows them, as a dark SVG; no font is loaded."""
    lines = text.strip("\n").split("\n")
    width = round(_CELL[0] * (_WIDTH + 2))
    height = _CELL[1] * (len(lines) + 1)
    used = sorted({code for code in _ESCAPE.findall(text) if code.startswith("38;5;")})
    styles = "".join(f".c{code[5:]}{{fill:{_rgb(int(code[5:]))}}}" for code in used)
    rows = "".join(_row(line, number) for number, line in enumerate(lines, 1))
    text_colour, paper = SURFACES["text"][1], SURFACES["paper"][1]
    frame = _FRAME.format(styles=styles, text=text_colour, paper=paper)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><style>{frame}</style>'
        f'<rect class="paper" width="{width}" height="{height}" rx="6"/>{rows}</svg>\n'
    )


def _row(line: str, number: int) -> str:
    """Return a line as pieces of one colour, each as wide as its letters are in a terminal."""
    found, column, colour = "", 1, ""
    for place, piece in enumerate(_ESCAPE.split(line)):
        if place % 2:
            colour = f' class="c{piece[5:]}"' if piece.startswith("38;5;") else ""
        elif piece.strip():
            indent = len(piece) - len(piece.lstrip())
            letters = piece.strip()
            x, wide = _CELL[0] * (column + indent), _CELL[0] * len(letters)
            found += (
                f'<text x="{x:.1f}" y="{_CELL[1] * number:g}" textLength="{wide:.1f}" '
                f'lengthAdjust="spacingAndGlyphs"{colour}>{escape(letters)}</text>'
            )
        column += 0 if place % 2 else len(piece)
    return found


def _rgb(code: int) -> str:
    """Return one of a terminal's 256 colours: the cube from 16 on, the greys from 232 on."""
    if code >= 232:
        return f"#{10 * (code - 232) + 8:02x}" + f"{10 * (code - 232) + 8:02x}" * 2
    levels = (0, 95, 135, 175, 215, 255)
    code -= 16
    return "#" + "".join(f"{levels[code // step % 6]:02x}" for step in (36, 6, 1))


def plotted(words: list[str]) -> str:
    """Return the drawing alone that ends what a command with ``--plot`` prints."""
    colours = {"COLUMNS": str(_WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    plain = answered([word for word in words if word != "--plot"], **colours)
    return answered(words, **colours).removeprefix(plain)


def draw_terminals() -> None:
    """Write the pictures of terminals."""
    for file, words in pictured(PLOTS.read_text(encoding="utf-8")).items():
        target = PLOTS.parent / file
        target.parent.mkdir(exist_ok=True)
        target.write_text(terminal(plotted(words)), encoding="utf-8")
        sys.stdout.write(f"written: {file}\n")


def main() -> int:
    """Write the pictures, or compare the README's."""
    picture = drawn()
    if "--check" in sys.argv[1:]:
        is_current = named(TARGET.read_text(encoding="utf-8")) == named(picture)
        sys.stdout.write(f"{TARGET.name}: {'current' if is_current else 'not current'}\n")
        return 0 if is_current else 1
    TARGET.write_text(picture, encoding="utf-8")
    sys.stdout.write(f"written: {TARGET.name}\n")
    draw_terminals()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
