"""Draw ``docs/report.png``: the top of a page of ``advisor report``, in headless Chromium.

``python docs/tools/report_picture.py`` asks the model of ``docs/handing_over.md`` for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs" / "report.png"
PAGE: Final = ROOT / "docs" / "handing_over.md"
WIDTH: Final = 1100  # [px]
HEIGHT: Final = 1330


def command(text: str) -> list[str]:
    """Return the words of the page's last command: a model that was never run."""
    found = re.findall(r"^advisor (report [^#\n]*)", text, re.M)
    return str(found[-1]).split()


def main() -> None:
    """Ask, draw, and take the picture."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import browser, opened

    with tempfile.TemporaryDirectory() as folder, browser() as started:
        file = Path(folder) / "report.html"
        asked = [sys.executable, "-m", "advisor.cli", *command(PAGE.read_text(encoding="utf-8"))]
        subprocess.run([*asked, "-o", str(file)], cwd=ROOT, check=True)
        with opened(started, file, width=WIDTH) as seen:
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
            seen.page.screenshot(path=str(TARGET), clip=clip, full_page=True)
    sys.stdout.write(f"written: {TARGET.name}\n")


if __name__ == "__main__":
    main()
