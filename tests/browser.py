"""A real headless Chromium for tests marked ``browser``; they are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# No service of the browser's own is wanted: what it asks for is what the page asks for.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
LONGEST_MS = 60_000  # a shared machine stands still for seconds


def chromium() -> str:
    """Where the browser is; skips the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on PATH: `make test-browser` says how to get one")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """Start a browser, and end it."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield started
        finally:
            started.close()


@dataclass
class Seen:
    """A page, what it said on its console, and what it asked the network for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", lambda said: self._said(said.type, said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)


@contextmanager
def opened(
    started: Any, address: str | Path, *, width: int = 1280, scheme: str = "light"
) -> Iterator[Seen]:
    """Open a page and wait until everything on it is drawn."""
    context = started.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(LONGEST_MS)
    seen = Seen(context.new_page())
    seen.watch()
    try:
        seen.page.goto(f"file://{address}" if isinstance(address, Path) else address)
        wait_until_drawn(seen.page)
        yield seen
    finally:
        context.close()


def wait_until_drawn(page: Any) -> None:
    """Wait for the page's own word that tables and charts stand."""
    page.wait_for_selector("html[data-ready=true]", state="attached", timeout=LONGEST_MS)
