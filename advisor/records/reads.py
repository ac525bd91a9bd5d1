"""Tables that a computation read, with their contents' digests, for cards and stored figures.

A reader notes every table that it hands out; whoever wants to know collects what was read inside
a block.

>>> with tables_read() as inputs:
...     note_table("suite/table", ["a,b", "1,2"])
>>> list(inputs)
['suite/table']
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_COLLECTING: ContextVar[tuple[dict[str, str], ...]] = ContextVar("collecting", default=())


@contextmanager
def tables_read() -> Iterator[dict[str, str]]:
    """Give a mapping that fills with name -> SHA-256 of every table read inside the block."""
    found: dict[str, str] = {}
    before = _COLLECTING.get()
    token = _COLLECTING.set((*before, found))
    try:
        yield found
    finally:
        _COLLECTING.reset(token)


@contextmanager
def nothing_noted() -> Iterator[None]:
    """Note nothing that is read inside the block: what it computes is told apart.

    >>> with tables_read() as inputs, nothing_noted():
    ...     note_table("suite/table", ["a,b", "1,2"])
    >>> inputs
    {}
    """
    token = _COLLECTING.set(())
    try:
        yield
    finally:
        _COLLECTING.reset(token)


def note_table(name: str, lines: Iterable[str]) -> None:
    """Note that a table was read; the order of its rows does not matter.

    Parameters
    ----------
    lines : iterable of str
        Its header and rows. They are looked at only where somebody collects.
    """
    if _COLLECTING.get():
        _note(name, "\n".join(sorted(lines)).encode())


def note_file(name: str, path: Path) -> None:
    """Note that a file was handed out to a reader of its own; its bytes are what counts."""
    if _COLLECTING.get():
        _note(name, path.read_bytes())


def _note(name: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    for found in _COLLECTING.get():
        found[name] = digest
