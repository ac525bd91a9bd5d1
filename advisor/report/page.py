"""The page of ``advisor report`` and ``advisor ui``: one HTML file that loads nothing.

It holds the data as JSON, Plotly's script (packed), our styles and our script, which draws all of
it in the browser; texts are set as texts and never as HTML. The content security policy admits the
scripts by their hashes and no request at all.

For ``advisor ui``: ``page(data, live=..., panel=..., scripts=..., styles=...)``.

- ``live``: any JSON; the script finds it as ``advisorReport.live`` (null in a report). Requests to
  the page's own origin are then admitted.
- ``panel``: trusted HTML of controls, put into ``<aside id="panel">`` before
  ``<main id="report">``.
- ``scripts``, ``styles``: texts that follow ours.

In the browser, ``window.advisorReport`` has

- ``data``: what is shown now; ``live``;
- ``draw(data)``: show another answer in place of it (same form: ``page_data.page_data``);
- ``select(key)``: show a candidate: ``"1"``, ``"here"``; ``selected``: its key;
- ``element(tag, attributes, ...children)``: makes a node; texts stay texts;
- ``candidateCard(key)``: a node with a candidate's machines, time and cost.

and ``document`` gets the events ``advisor:drawn`` and ``advisor:selected`` (``detail``: the key).
``<html data-ready="true">`` is set once everything, charts included, has been drawn.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any, Final

from advisor.errors import AdvisorError

# Written into every page, so that the verb knows its own.
GENERATOR: Final = "advisor report"
_STYLES: Final = ("page.css",)
_SCRIPTS: Final = ("elements.js", "plots.js", "front.js", "candidate.js", "run.js", "page.js")


def page(
    data: Mapping[str, Any],
    *,
    live: Any = None,
    panel: str = "",
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> str:
    """Return the page as HTML; see the module for what the parts are.

    Raises
    ------
    AdvisorError
        If Plotly's script is not where Plotly keeps it.
    """
    bundle, packed = plotly()
    parts = [*(asset(name) for name in _SCRIPTS), *scripts]
    texts = [_script("\n".join(parts))]
    title = f"{data['answer']['run']}: what to rent"
    filled = {
        "csp": _policy([*texts, bundle], is_live=live is not None),
        "title": escape(title),
        "generator": GENERATOR,
        "css": "\n".join([*(asset(name) for name in _STYLES), *styles]),
        "summary": "\n".join(f"<p>{escape(line)}</p>" for line in data["answer"]["summary"]),
        "panel": f'<aside id="panel" aria-label="Question">{panel}</aside>' if panel else "",
        "data": embedded(data),
        "live": embedded(live),
        "plotly": packed,
        "script": texts[0],
    }
    pieces = asset("page.html").split("%%")
    # Odd pieces are names: what is filled in is never looked at again.
    return "".join(filled[one] if i % 2 else one for i, one in enumerate(pieces))


def embedded(value: Any) -> str:
    r"""Return JSON that stays inside a script element, whatever texts it holds.

    Examples
    --------
    >>> print(embedded({"name": "</script>"}))
    {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def asset(name: str) -> str:
    """Return one of the page's own files."""
    place = resources.files("advisor.report") / "assets" / name
    return place.read_text(encoding="utf-8")


@cache
def plotly() -> tuple[str, str]:
    """Return Plotly's script, and the same packed: gzip, then base64.

    Raises
    ------
    AdvisorError
        If it is not where Plotly keeps it.
    """
    place = resources.files("plotly") / "package_data" / "plotly.min.js"
    try:
        text = place.read_bytes()
    except OSError as error:
        raise AdvisorError(
            f"cannot read Plotly's script: {error}", hint="pip install --force-reinstall plotly"
        ) from error
    # Without the time of day, so that the same data make the same page.
    packed = base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()
    return text.decode(), packed


def _script(text: str) -> str:
    """Return a script of ours; a text in it must not end the element."""
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("a script that ends its own element")
    return text


def _policy(scripts: Sequence[str], *, is_live: bool) -> str:
    """Return the content security policy: these scripts, and no request but to our own server."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    own = "'self'" if is_live else "'none'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            f"connect-src {own}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
