"""Lines of Python by room: all told, and of code (no comments, docstrings, blank lines).

``make size`` prints them; ``python .ci/size.py --since COMMIT`` fails where a commit since then
adds more than 500 lines net and its message does not say what it took out ("out: ...").
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("advisor", "planners", "collectors")
ALL = (*PRODUCT, "lab", "tests")
MOST_ADDED = 500


def code_lines(source: str) -> int:
    """Return how many lines hold code."""
    tree = ast.parse(source)
    documentation: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            first = body[0]
            if isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                documentation.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and at not in documentation
        for at, line in lines
    )


def files(room: str) -> list[Path]:
    """Return the room's files, none through a link."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", f"{room}/*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def table() -> None:
    """Print files, lines and lines of code of each room, and the sums."""
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for top in ALL:
        for path in files(top):
            source = path.read_text(encoding="utf-8")
            parts = path.relative_to(ROOT).parts
            code = code_lines(source)
            for name in {top, "/".join(parts[:2]) if len(parts) > 2 else top}:
                for at, amount in enumerate((1, source.count("\n"), code)):
                    rooms[name][at] += amount
    print(f"{'room':28} {'files':>6} {'lines':>8} {'code':>8}")
    for name in sorted(rooms):
        indented = f"{'  ' * name.count('/')}{name}"
        print(f"{indented:28} {rooms[name][0]:6} {rooms[name][1]:8,} {rooms[name][2]:8,}")
    for words, tops in (("product", PRODUCT), ("product and lab", (*PRODUCT, "lab"))):
        sums = [sum(rooms[top][at] for top in tops) for at in range(3)]
        print(f"{words:28} {sums[0]:6} {sums[1]:8,} {sums[2]:8,}")


def silent_growth(since: str) -> list[str]:
    """Return the commits that add much and do not say what they took out."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%x00%h %s%n%b%x01", "--numstat", f"{since}..HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = []
    for entry in log.split("\0")[1:]:
        message, _, numbers = entry.partition("\1")
        net = 0
        for line in numbers.splitlines():
            cells = line.split("\t")
            if len(cells) == 3 and cells[2].endswith(".py") and cells[0].isdigit():
                net += int(cells[0]) - int(cells[1])
        if net > MOST_ADDED and "out:" not in message.lower():
            found.append(f"{message.splitlines()[0]}: {net:+,} lines; say what went out")
    return found


def main() -> int:
    """Print the table; check commits where ``--since`` asks for it."""
    if "--since" in sys.argv:
        silent = silent_growth(sys.argv[sys.argv.index("--since") + 1])
        print("\n".join(silent) or "every commit that adds much says what it took out")
        return bool(silent)
    table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
