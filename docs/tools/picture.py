"""Draw ``docs/recommendation.svg``, the README's picture, from a real answer.

``python docs/tools/picture.py`` asks the README's last `advisor recommend` and draws the answer;
``--check`` says whether the picture is current, numbers aside (exit code 1).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs" / "recommendation.svg"
README: Final = ROOT / "README.md"


def command(text: str) -> list[str]:
    """Return the words of the last `advisor recommend` that a page shows."""
    found = re.findall(r"^\$ advisor (recommend .*)$", text, re.M)
    return str(found[-1]).split()


def drawn() -> str:
    """Return the picture of what the command answers now."""
    from advisor.shown.front import front_chart
    from advisor.shown.picture import svg

    words = command(README.read_text(encoding="utf-8"))
    asked = [sys.executable, "-m", "advisor.cli", *words, "--json"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    return svg(front_chart(json.loads(done.stdout), names=True))


def named(picture: str) -> list[str]:
    """Return what the picture names: everything but its numbers, in order."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return [text for text in texts if re.search(r"[A-Za-z]", text)]


def main() -> int:
    """Write the picture, or compare it."""
    picture = drawn()
    if "--check" in sys.argv[1:]:
        is_current = named(TARGET.read_text(encoding="utf-8")) == named(picture)
        sys.stdout.write(f"{TARGET.name}: {'current' if is_current else 'not current'}\n")
        return 0 if is_current else 1
    TARGET.write_text(picture, encoding="utf-8")
    sys.stdout.write(f"written: {TARGET.name}\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
