"""Write ``docs/cli/``: one page a verb and one of the options they share, from the program.

``python docs/tools/cli_reference.py`` writes the pages, ``--check`` only says which are not
current (exit code 1). Every verb, argument, option, default and environment variable comes from
the command line's own objects, so that the pages cannot say anything else.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ROOT / "docs" / "cli"
# An option that so many verbs take, in the same words, stands on one page.
SHARED_BY: Final = 3


def verbs() -> dict[str, Any]:
    """Return every command by its words: ``recommend``, ``runs list``, ..., groups included."""
    from advisor.cli.program import VERBS, load_verb

    found: dict[str, Any] = {}
    for name in VERBS:
        command = load_verb(name)
        found[name] = command
        for inner, one in getattr(command, "commands", {}).items():
            found[f"{name} {inner}"] = one
    return found


def options(command: Any) -> list[Any]:
    """Return the options of a command, in the order of its help."""
    return [p for p in command.params if p.param_type_name == "option"]


def flags(command: Any) -> set[str]:
    """Return every flag that a command takes, ``--help`` included."""
    return {"--help"} | {flag for p in options(command) for flag in (*p.opts, *p.secondary_opts)}


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    known = verbs()
    found = {"index.md": _index(known), "options.md": _shared_page()}
    for name, command in known.items():
        if " " not in name:
            inner = {k: v for k, v in known.items() if k.startswith(f"{name} ")}
            found[f"{name}.md"] = "\n".join(_page(name, command, inner)).rstrip() + "\n"
    return found


def _index(known: dict[str, Any]) -> str:
    from advisor.cli.program import VERBS

    lines = [
        _notice(), "# Command line", "",
        "`advisor VERB --help` says the same in the terminal. [Shared options](options.md) have "
        "one meaning in all verbs, and may also stand in a project file or be Python keywords "
        "([asking](../asking.md)).", "",
        "| verb | what it does |", "|---|---|",
    ]  # fmt: skip
    for name, (_, about) in VERBS.items():
        inner = [k.split(" ", 1)[1] for k in known if k.startswith(f"{name} ")]
        more = f" Verbs of its own: {', '.join(inner)}." if inner else ""
        lines.append(f"| [`{name}`]({name}.md) | {_cell(about)}{more} |")
    lines += [
        "", "## Exit codes", "", "| code | meaning |", "|---|---|",
        "| 0 | it worked |", "| 1 | an error: one line says what, one says what to do |",
        "| 2 | a mistake in the command |",
        "| 3 | the job does not fit the machines, nothing satisfies the constraints, or a "
        "recording is not known well enough |",
        "", "`advisor profile` passes the exit code of the script on.",
        "", "## Environment variables", "", "| variable | meaning |", "|---|---|",
    ]  # fmt: skip
    lines += [f"| `{name}` | {_cell(about)} |" for name, about in sorted(_variables(known))]
    return "\n".join(lines) + "\n"


def _variables(known: dict[str, Any]) -> set[tuple[str, str]]:
    named = {
        (p.envvar, f"Same as `{p.opts[0]}` of `advisor {verb}`. {p.help or ''}".strip())
        for verb, command in known.items()
        for p in command.params
        if p.envvar
    }
    return named | {
        ("ADVISOR_DEBUG", "Set to 1 to see the traceback of an error."),
        ("ADVISOR_MODELS", "Folder or URL of your own models."),
    }


@cache
def shared() -> dict[str, dict[str, None]]:
    """Return the rows of the options that several verbs take, by named panel."""
    from advisor.ask import OPTIONS, PANELS

    verbs_of: dict[str, set[str]] = defaultdict(set)
    panel_of: dict[str, str] = {}  # the last where some verbs put it among their other options
    for name, command in verbs().items():
        for p in options(command):
            row = _row(p)
            verbs_of[row].add(name.split()[0])
            panel_of[row] = max(panel_of.get(row, PANELS[0]), _panel(p), key=PANELS.index)
    rows = [row for row, names in verbs_of.items() if len(names) >= SHARED_BY]
    return {
        panel: {row: None for row in rows if panel_of[row] == panel}
        for panel in PANELS
        if panel != OPTIONS
    }


def _shared_page() -> str:
    lines = [
        _notice(), "# Shared options", "",
        "These options mean the same in every verb that takes them; the page of a "
        "[verb](index.md) names those that it takes, and has its own.", "",
    ]  # fmt: skip
    lines += _tables(shared(), level=2)
    return "\n".join(lines).rstrip() + "\n"


def _page(name: str, command: Any, inner: dict[str, Any]) -> Iterator[str]:
    yield from (_notice(), f"# advisor {name}", "", "[All verbs](index.md)", "")
    yield from _body(f"advisor {name}", command, level=2, has_verbs=bool(inner))
    for verb, one in inner.items():
        yield from (f"## advisor {verb}", "")
        yield from _body(f"advisor {verb}", one, level=3, has_verbs=False)


def _body(name: str, command: Any, *, level: int, has_verbs: bool) -> Iterator[str]:
    for paragraph in _paragraphs(command.help or ""):
        yield from (paragraph, "")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = [name, *(["VERB"] if has_verbs else ["[OPTIONS]"]), *map(_usage, arguments)]
    yield from ("```text", " ".join(usage), "```", "")
    if any(p.help for p in arguments):
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| `{_argument(p)}` | {_cell(p.help or '')} |" for p in arguments)
        yield ""
    taken = {_row(p) for p in options(command)}
    own: dict[str, dict[str, None]] = defaultdict(dict)
    for p in options(command):
        if not any(_row(p) in rows for rows in shared().values()):
            own[_panel(p)][_row(p)] = None
    yield from _tables(own, level)
    yield from _taken(taken)


def _paragraphs(text: str) -> list[str]:
    return [
        " ".join(part.split()) for part in text.replace("\b", "").split("\n\n") if part.strip()
    ]


def _argument(p: Any) -> str:
    return str(p.metavar or p.name.upper()).replace("|", "¦")


def _usage(p: Any) -> str:
    shown = str(p.metavar or p.name.upper())
    shown = shown if p.nargs == 1 or "..." in shown else f"{shown}..."
    return shown if p.required or shown.startswith("[") else f"[{shown}]"


def _panel(p: Any) -> str:
    from advisor.ask import OPTIONS

    return getattr(p, "rich_help_panel", None) or OPTIONS


def _tables(panels: dict[str, dict[str, None]], level: int) -> Iterator[str]:
    from advisor.ask import OPTIONS, OUTPUT, PANELS

    shown = {panel: [*panels[panel]] for panel in PANELS if panels.get(panel)}
    if shown and shown.keys() <= {OPTIONS, OUTPUT}:
        shown = {OPTIONS: [row for rows in shown.values() for row in rows]}
    for panel, rows in shown.items():
        if len(shown) > 1:
            yield from (f"{'#' * level} {panel}", "")
        yield from ("| option | meaning | default |", "|---|---|---|", *rows, "")


def _taken(rows: set[str]) -> Iterator[str]:
    """Yield which of the shared options a verb takes, by their panels."""
    lines = []
    for panel, known in shared().items():
        taken, left = [r for r in known if r in rows], [r for r in known if r not in rows]
        if taken and len(known) > 1 and len(left) < len(taken):
            names = f"all but {_flags(left)}" if left else "all"
        else:
            names = _flags(taken)
        if names:
            lines.append(f"- [{panel}](options.md#{slug(panel)}): {names}")
    if all(row in rows for known in shared().values() for row in known):
        yield from ("It also takes all [shared options](options.md).", "")
    elif len(lines) == 1:
        yield from (f"Shared options: {lines[0].removeprefix('- ')}.", "")
    elif lines:
        yield from ("It also takes these [shared options](options.md):", "", *lines, "")


def _flags(rows: list[str]) -> str:
    return ", ".join(f"`{row.split('`')[1]}`" for row in rows)


def slug(heading: str) -> str:
    """Return the anchor that the site gives a heading."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def _row(p: Any) -> str:
    names = ", ".join(f"`{flag}`" for flag in (*p.opts, *p.secondary_opts))
    value = "" if getattr(p, "is_flag", False) else f" `{str(p.metavar).replace('|', '¦')}`"
    about, said = _split_default(p.help or "")
    help_text = _cell(about)
    if p.envvar:
        help_text += f" Environment: `{p.envvar}`."
    if p.multiple and "repeat" not in help_text:
        help_text += " May be repeated."
    return f"| {names}{value} | {help_text} | {_default(p) or _cell(said)} |"


def _split_default(text: str) -> tuple[str, str]:
    """Return a help text and the default that it ends with, ``(default: ...)``."""
    found = re.fullmatch(r"(.*?)\s*\(default: (.*)\)\.?", " ".join(text.split()))
    return (text, "") if found is None else (f"{found[1].rstrip('.')}.", found[2])


def _default(p: Any) -> str:
    if p.required:
        return "required"
    if isinstance(p.show_default, str):
        return f"`{p.show_default}`"
    default = getattr(p.default, "value", p.default)
    if default is None or default is False or default in ("", (), []) or callable(default):
        return ""
    if not isinstance(default, str | int | float):  # "nothing was given" of some versions
        return ""
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _cell(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _notice() -> str:
    return "<!-- Written by docs/tools/cli_reference.py from the program; do not edit. -->\n"


def stale(wanted: dict[str, str]) -> Iterable[str]:
    """Return the pages that are missing, differ, or belong to no verb any more."""
    there = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    return sorted(n for n in {*wanted, *there} if wanted.get(n) != there.get(n))


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that are not current."""
    wanted = pages()
    old = list(stale(wanted))
    if "--check" in arguments:
        sys.stderr.writelines(f"not current: docs/cli/{name}\n" for name in old)
        return 1 if old else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in old:
        path = PAGES / name
        if name in wanted:
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
        sys.stderr.write(f"written: docs/cli/{name}\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
