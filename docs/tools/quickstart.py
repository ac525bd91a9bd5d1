"""Run the quick start and the README, and write into both what their commands really print.

``python docs/tools/quickstart.py [README]`` runs every command of a page's console blocks, in
order, in one temporary folder that holds a copy of ``examples/``, and puts the output in place of
the old.
A comment above a block says what is shown, and how exactly it must come out again:

    <!-- output: first 12 -->          the first lines, then "..."
    <!-- output: only ^step -->        the lines that a pattern finds
    <!-- output: first 12; check runs -->   the numbers and names depend on this machine
    <!-- output: first 12; exact -->        every letter is the same on every machine

``tests/test_installed.py`` runs the pages as well, from a wheel: a block marked ``check runs``
must work, one marked ``exact`` must print what is shown, any other the lines shown, numbers aside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# Page -> columns of the terminal that it shows.
PAGES: Final = {
    ROOT / "docs" / "quickstart.md": 100,
    ROOT / "docs" / "accuracy.md": 100,
    ROOT / "README.md": 80,
}
_BLOCK: Final = re.compile(
    r"(?:<!-- output: (?P<rule>.*?) -->\n+)?```console\n(?P<text>.*?)^```$", re.M | re.S
)
_TIMEOUT_S: Final = 600
# Whatever may differ between two runs of one command: numbers with their units, names of runs.
_NUMBER: Final = re.compile(r"[\d][\w.,:%/+-]*|(?<= )(?:ms|s|min|h|d|GiB|MiB|us)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A command of the page: its words, what the page shows of its output, and by which rule."""

    command: str
    shown: tuple[str, ...]
    rule: str

    @property
    def is_exact(self) -> bool:
        """Whether the lines shown must come out again, numbers aside."""
        return "check runs" not in self.rule

    @property
    def is_literal(self) -> bool:
        """Whether they must come out letter for letter."""
        return self.rule.endswith("; exact")

    def cut(self, output: str) -> list[str]:
        """Return the lines of an output that the page shows."""
        lines = [line.rstrip() for line in output.strip("\n").splitlines()]
        if only := re.search(r"only (.*?)(?:; first|; check|; exact|$)", self.rule):
            lines = [line for line in lines if re.search(only[1], line)]
        first = re.search(r"first (\d+)", self.rule)
        if first and len(lines) > int(first[1]):
            lines = [*lines[: int(first[1])], "..."]
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command printed (both streams, in order) and its exit code."""

    output: str
    code: int


def examples(text: str) -> Iterator[Example]:
    """Return the commands of a page in order; a block has one, and its output."""
    for block in _BLOCK.finditer(text):
        lines = block["text"].splitlines()
        commands = [line for line in lines if line.startswith("$ ")]
        if len(commands) != 1 or lines[0] != commands[0]:
            raise SystemExit(f"a block holds one command, then its output: {lines[0]}")
        yield Example(
            command=lines[0].removeprefix("$ "), shown=tuple(lines[1:]), rule=block["rule"] or ""
        )


def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a user's folder: the examples, a recording, nothing that another run has left."""
    made = tempfile.TemporaryDirectory(prefix="quickstart-")
    for part in ("examples", "tests/golden/run-schema-1", "tests/golden/run-rehearsed"):
        shutil.copytree(ROOT / part, Path(made.name) / part)
    return made


def run(command: str, where: str, columns: int = 100) -> Result:
    """Run a command of the page in a folder, as a user's shell would."""
    words = f'"{sys.executable}" -m advisor.cli'
    home = Path(where) / ".home"
    done = subprocess.run(
        ["bash", "-c", re.sub(r"^advisor\b", lambda _: words, command)],
        cwd=where,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": str(columns),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "ADVISOR_RUNS": str(Path(where) / ".advisor" / "runs"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    return Result(output=done.stdout, code=done.returncode)


def masked(line: str) -> str:
    """Return a line without its numbers and the room that they take."""
    return re.sub(r"[\s#]+", " ", _NUMBER.sub("#", line)).strip()


def missing(example: Example, output: str) -> list[str]:
    """Return the lines that the page shows and the output has not, numbers aside."""
    printed = {masked(line) for line in output.splitlines()}
    return [line for line in example.shown if line != "..." and masked(line) not in printed]


def rewritten(text: str, columns: int) -> str:
    """Return the page with what its commands print now."""
    results: dict[str, list[str]] = {}
    with folder() as where:
        for example in examples(text):
            result = run(example.command, where, columns)
            if result.code:
                raise SystemExit(f"{example.command}: exit code {result.code}\n{result.output}")
            results[example.command] = example.cut(result.output)
            sys.stderr.write(f"ran: {example.command}\n")

    def replace(block: re.Match[str]) -> str:
        first = block["text"].splitlines()[0]
        new = "\n".join([first, *results[first.removeprefix("$ ")]])
        return block[0].replace(block["text"], f"{new}\n")

    return _BLOCK.sub(replace, text)


def main() -> int:
    """Write the pages, or those that are named."""
    for page, columns in PAGES.items():
        if len(sys.argv) == 1 or page.stem in sys.argv[1:]:
            text = page.read_text(encoding="utf-8")
            page.write_text(rewritten(text, columns), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
