"""The small real experiments, by name: ``python -m lab.experiments NAME [OPTION ...]``.

Without a name they are listed. Each says what it predicts beside what it measured; what it took
and the load of the machine close it, since both belong to the figures of docs/systems.md.
"""

from __future__ import annotations

import ast
import runpy
import sys
import time
from pathlib import Path
from typing import Final

from advisor.lab import frame

PACKAGE: Final = "advisor.lab.experiments"
LONGEST_S: Final = 600.0  # on a quiet machine


def experiments() -> dict[str, str]:
    """Return the first line of what each says of itself, by name.

    An experiment names the command that runs it; other files here are parts of one.
    """
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if path.stem != "__main__" and f"{PACKAGE}.{path.stem}" in said:
            found[path.stem] = said.splitlines()[0]
    return found


def main() -> int:
    """Run the experiment that the command line names; 2 where there is none of that name."""
    known = experiments()
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print("usage: python -m lab.experiments NAME [OPTION ...]\n")
        print("\n".join(f"{name:{max(map(len, known))}}  {line}" for name, line in known.items()))
        return 0
    name, *options = words
    if name not in known:
        print(f"error: no experiment is called {name!r}", file=sys.stderr)
        print("hint: python -m lab.experiments lists them", file=sys.stderr)
        return 2
    sys.argv = [name, *options]
    begin_s = time.monotonic()
    try:
        runpy.run_module(f"{PACKAGE}.{name}", run_name="__main__", alter_sys=True)
    finally:
        took_s = time.monotonic() - begin_s
        late = f", longer than {LONGEST_S / 60:.0f} minutes" if took_s > LONGEST_S else ""
        print(f"{name}: {took_s:.0f} s{late}; {frame.load()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
