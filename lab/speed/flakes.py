"""Which tests are not the same every time: some files, three times, in random order, beside load.

    python -m advisor.lab.speed.flakes [--files 12] [--seed DAY] [--rounds 3] [--burners 2]

The files are drawn by the day, so that a command of every night comes round to all of them.
Printed is every test that was tried again or failed, with the seeds of its rounds:
``pytest --randomly-seed=SEED FILE`` repeats the order. A test that failed in every round is broken
and not a flake; it is called so. The command fails where a test failed; what was only tried again
is to be mended, and fails nothing.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from advisor.lab import frame

# What each looks at is another environment, or minutes long: they have targets of their own.
MARKS: Final = "not slow and not frameworks and not browser and not exports and not needs_root"
_LINE: Final = re.compile(r"^(RERUN|FAILED|ERROR) (\S+)", re.MULTILINE)
NOTHING_RAN: Final = 5  # pytest's exit code
Seen = dict[str, list[tuple[str, int]]]  # by test: what happened, in the round of which seed


def drawn(files: Sequence[Path], seed: int, count: int) -> list[Path]:
    """Return the files of a day; days one after another come round to all of them."""
    order = sorted(files)
    random.Random(0).shuffle(order)
    at = seed * count
    return [order[(at + i) % len(order)] for i in range(min(count, len(order)))]


def rounds(tree: Path, files: Sequence[Path], seeds: Sequence[int], burners: int) -> Seen:
    """Run the files once a seed, in its order, beside so many processes that burn a core each.

    Raises RuntimeError where pytest did not come to an end of its own.
    """
    found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for seed in seeds:
        command = [
            sys.executable, "-m", "pytest", "-q", "--tb=no", "-rRfE", "-p", "no:cacheprovider",
            "-m", MARKS, f"--randomly-seed={seed}", *map(str, files),
        ]  # fmt: skip
        with frame.burning(burners):
            done = subprocess.run(
                command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, text=True,
                capture_output=True, check=False,
            )  # fmt: skip
        if done.returncode not in (0, 1, NOTHING_RAN):
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
        for what, test in set(_LINE.findall(done.stdout)):
            found[test].append((what, seed))
    return dict(found)


def told(seen: Seen, count: int) -> list[str]:
    """Return a line for every test that was not the same in all of ``count`` rounds, or failed."""
    lines = []
    for test, happened in sorted(seen.items()):
        failed = sorted(seed for what, seed in happened if what != "RERUN")
        again = sorted({seed for what, seed in happened if what == "RERUN"} - set(failed))
        if len(failed) == count:
            lines.append(f"{test}: failed in every round, which is not a flake")
            continue
        parts = [
            f"{word} in {len(seeds)} of {count} rounds (seeds {', '.join(map(str, seeds))})"
            for word, seeds in (("failed", failed), ("tried again", again)) if seeds
        ]  # fmt: skip
        lines.append(f"{test}: {', '.join(parts)}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, run, print; 1 where a test failed."""
    today = datetime.now(UTC).date().toordinal()
    asked = frame.options(__doc__, {
        "--files": (12, "how many files of tests"),
        "--seed": (today, "of the draw and the orders; today's unless given"),
        "--rounds": (3, "how often each is run"),
        "--burners": (os.cpu_count() or 1, "processes that burn a core meanwhile"),
    }, argv)  # fmt: skip
    files = drawn(list((frame.ROOT / "tests").glob("test_*.py")), asked.seed, asked.files)
    print(*(file.name for file in files), frame.load(), sep="\n", flush=True)
    seeds = [asked.seed * 10 + one for one in range(asked.rounds)]
    seen = rounds(frame.ROOT, files, seeds, asked.burners)
    print(*told(seen, len(seeds)), f"{len(seen)} tests were tried again or failed", sep="\n")
    return int(any(what != "RERUN" for happened in seen.values() for what, _ in happened))


if __name__ == "__main__":
    sys.exit(main())
