"""Count the words of the documentation; ``--check`` holds the bound.

Counted is every page of the site's navigation that a user reads. The generated reference of the
command line, the changelog and included tables are not; contributors' pages are printed apart.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# What the users' pages may have together; it may only fall. [words]
MOST: Final = 24_800
CONTRIBUTORS: Final = ("architecture.md", "adding_a", "contributing.md")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)  # marks of figures: nobody reads them
GENERATED: Final = ("cli/", "changelog.md")


def counted() -> tuple[dict[str, int], dict[str, int]]:
    """Return the words of the users' pages and of the contributors', by page."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    pages = re.findall(r"([\w/]+\.md)$", navigation, re.MULTILINE)
    words = {
        page: len(_COMMENT.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8")).split())
        for page in pages
        if not page.startswith(GENERATED)
    }
    apart = {page for page in words if page.startswith(CONTRIBUTORS)}
    return {p: n for p, n in words.items() if p not in apart}, {p: words[p] for p in sorted(apart)}


def main() -> None:
    """Print both counts, or fail where the users' pages have grown beyond the bound."""
    users, contributors = counted()
    for title, pages in (("users", users), ("contributors", contributors)):
        print(f"{sum(pages.values()):7,}  {title}")
        if "--check" not in sys.argv:
            for page, number in sorted(pages.items(), key=lambda one: -one[1]):
                print(f"{number:9,}  {page}")
    if "--check" in sys.argv and sum(users.values()) > MOST:
        raise SystemExit(f"the users' pages have more than {MOST:,} words: shorten one")


if __name__ == "__main__":
    main()
