"""A hook of the documentation site: it has the colours of the page and the report."""

from __future__ import annotations

from typing import Any, Final

from mkdocs.structure.files import File, Files

from advisor.show.palette import variables

_SCHEMES: Final = ("default", "slate")  # Material's names of the light one and the dark one


def on_files(files: Files, config: Any, **_others: Any) -> Files:
    """Add the style sheet that ``site.css`` takes its colours from."""
    rules = (
        f"[data-md-color-scheme={name}] {{ {variables(place)} }}\n"
        for place, name in enumerate(_SCHEMES)
    )
    files.append(File.generated(config, "palette.css", content="".join(rules)))
    return files
