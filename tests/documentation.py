"""What the tests of the documentation share: its pages, their blocks, and the program's flags."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: where it stands, its language, its text."""

    page: str
    line: int
    language: str
    text: str
    title: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def tool(name: str, folder: str = "docs/tools") -> ModuleType:
    """Return a program that is no part of a package as a module."""
    path = ROOT / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"docs_tools_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def pages() -> dict[str, str]:
    """Return every written page by its path; generated ones are held to their generator."""
    found = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
    found += [
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.parent.name not in ("cli", "generated")
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


def blocks(*languages: str) -> Iterator[Block]:
    """Return the fenced blocks of these languages, of all pages."""
    for page, text in pages().items():
        for found in FENCE.finditer(text):
            if found["language"] in languages:
                line = text.count("\n", 0, found.start()) + 1
                title = re.search(r'title="([^"]+)"', found["rest"])
                yield Block(
                    page=page,
                    line=line,
                    language=found["language"],
                    text=found["text"],
                    title=title[1] if title else "",
                )
