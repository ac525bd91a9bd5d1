"""Draw ``docs/ui.png``: the page of ``advisor ui``, in headless Chromium.

``python docs/tools/ui_picture.py`` asks the model of ``docs/asking.md`` and takes the picture.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs" / "ui.png"
PAGE: Final = ROOT / "docs" / "asking.md"
WIDTH: Final = 1280
HEIGHT: Final = 1000


def command(text: str) -> list[str]:
    """Return the words of the page's last command of one's own: a model that was never run."""
    found = re.findall(r"^advisor (ui [^#\n]*)", text, re.M)
    return str([one for one in found if "--serve" not in one][-1]).split()


def main() -> None:
    """Serve, ask, and take the picture."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import LONGEST_MS, browser, opened

    words = [*command(PAGE.read_text(encoding="utf-8")), "--no-open"]
    with subprocess.Popen(
        [sys.executable, "-m", "advisor.cli", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        try:
            address = running.stdout.readline().strip()
            with browser() as started, opened(started, address, width=WIDTH) as seen:
                seen.page.wait_for_selector(
                    "html[data-settled=true]", state="attached", timeout=LONGEST_MS
                )
                clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
                seen.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
                seen.page.screenshot(path=str(TARGET), clip=clip)
        finally:
            running.terminate()
    sys.stdout.write(f"written: {TARGET.name}\n")


if __name__ == "__main__":
    main()
