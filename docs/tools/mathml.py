"""A hook of the documentation site: equations become MathML while it is built.

Pages write equations as GitHub shows them: a ``math`` block, or ``$`...`$`` in a line. Browsers
draw MathML by themselves, so the site needs no script and no network.
"""

from __future__ import annotations

import re
from typing import Any, Final

from latex2mathml.converter import convert

_BLOCK: Final = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"\$`([^`\n]+)`\$")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the equations of a page by MathML."""
    markdown = _BLOCK.sub(lambda found: _block(found[1]), markdown)
    return _INLINE.sub(lambda found: _inline(found[1]), markdown)


def _inline(text: str) -> str:
    """Return an equation in a line; the span keeps Markdown from making it a paragraph."""
    return f"<span>{convert(text.strip())}</span>"


def _block(text: str) -> str:
    return f'<div class="equation">{convert(text.strip(), display="block")}</div>\n'
