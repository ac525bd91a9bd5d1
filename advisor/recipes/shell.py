"""The commands of a shell script: words with the variables and arrays that the script sets.

Only what launch scripts do is followed: assignments, arrays, defaults, sums of whole numbers,
conditions on texts, and the first round of a loop over words; a condition on anything else is
taken as it stands first. Nothing is run.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from typing import Final

_ASSIGNED: Final = re.compile(
    r"(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.S
)
_ARRAY: Final = re.compile(r"(\"?)\$\{([A-Za-z_]\w*)\[[@*]\]\}\1")
_BRACED: Final = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}")
_BARE: Final = re.compile(r"\$([A-Za-z_]\w*)")
_DEFAULT: Final = re.compile(r"\$\{(\w+):=([^{}]*)\}")
# Where a command's output goes: > FILE, 2>&1, &.
_REDIRECTED: Final = re.compile(r"(?<!\S)(?:[\d&]?>>?\s*(?:&\d|[^\s&]+)|&\s*$)")
_SUM: Final = re.compile(r"\$\(\(([\d\s+*/()-]{1,80})\)\)")
_TEXTS: Final = re.compile(r'\[\[?\s+"?([^"\s]*)"?\s*(==|=|!=|-eq|-ne)\s*"?([^"\s]*)"?\s+\]\]?')
_EMPTY: Final = re.compile(r'\[\[?\s+(-n|-z)\s+"?([^"]*?)"?\s+\]\]?')
_LOOP: Final = re.compile(r"for\s+([A-Za-z_]\w*)\s+in\s+(.+)", re.S)
_READ: Final = re.compile(
    r"""(?:IFS=["']?(?P<by>[^"'\s])["']?\s+)?read\s+(?:-\w+\s+)*"""
    r"(?P<names>[\w\s]+?)\s*<<<\s*(?P<said>.+)"
)
# What a script collapses or trims: $(echo "$ARGUMENTS" | tr ...).
_ECHO: Final = re.compile(r"""\$\(echo\s+"?([^"()]*?)"?\s*(?:\|[^()]*)?\)""")
# A text by a condition, taken as the others are: $([ "$N" -gt 1 ] && echo 2 || echo 1).
_CHOICE: Final = re.compile(r"\$\(\[[^]]*\]+\s*&&\s*echo\s+([^()|&]*?)\s*\|\|\s*echo\b[^()]*\)")
_MOST_ROUNDS: Final = 8
_KEYWORDS: Final = ("then", "do", "function", "set", "{", "}")
# A command in a loop begins with this, and how often the loop runs it.
ROUNDS: Final = "ROUNDS_OF_LOOPS"


def commands(
    text: str, given: dict[str, str] | None = None
) -> tuple[list[list[str]], dict[str, str]]:
    r"""Return the commands of a script as words, and its variables; ``given``: those before it.

    >>> commands('N=4\nA=(--lr 1 # fast\n --n $N)\ntorchrun t.py ${A[@]} --m $((N*2))')[0]
    [['torchrun', 't.py', '--lr', '1', '--n', '4', '--m', '8']]
    """
    known = dict(given or {})
    found: list[list[str]] = []
    rounds: list[int] = []  # of the loops that are open
    conditions: list[tuple[bool, bool]] = []  # conditions: is this branch followed, was any
    for statement in _statements(text):
        line = _ECHO.sub(r"\1", statement)
        known = dict(_DEFAULT.findall(line)) | known
        word = line.split(None, 1)[0]
        if word in ("if", "elif", "else", "fi"):
            _branch(word, _expanded(line, known), conditions)
        elif not all(taken for taken, _ in conditions):
            continue
        elif word in ("for", "while", "until"):
            match = _LOOP.fullmatch(line)
            values = _words(_expanded(match[2], known)) if match else []
            values = [] if "$" in "".join(values) else values
            known |= {match[1]: values[0]} if match and values else {}
            rounds.append(max(len(values), 1))
        elif word == "done":
            rounds = rounds[:-1]
        elif match := _READ.fullmatch(line):
            value = "".join(_words(_expanded(match["said"], known)))
            names = match["names"].split()
            known |= dict(zip(names, value.split(match["by"], len(names) - 1), strict=False))
        elif word in _KEYWORDS or word in ("echo", "printf"):
            continue
        elif (match := _ASSIGNED.fullmatch(line)) and (
            match[3].startswith(("(", "$((")) or len(_words(match[3])) <= 1
        ):
            name, adds, value = match.groups()
            inside = value[1:].rstrip().removesuffix(")") if value.startswith("(") else value
            is_sum = value.startswith("$((")
            said = _expanded(inside if is_sum else " ".join(_words(inside)), known)
            known[name] = f"{known.get(name, '')} {said}".strip() if adds else said
        else:
            parts = re.split(r"\s*(?:&&|\|\||;(?!;)|\|)\s*", _REDIRECTED.sub("", line))
            begun = [f"{ROUNDS}={math.prod(rounds)}"] if max(rounds, default=1) > 1 else []
            each = (_words(_expanded(part, known)) for part in parts)
            found += [[*begun, *words] for words in each if words]
    return found, known


def _statements(text: str) -> Iterator[str]:
    """Yield logical lines: continued ones joined, arrays and quoted texts whole, no comments."""
    text = re.sub(
        r"(?<!<)<<-?\s*['\"]?(\w+)['\"]?.*?\n\1\b", "", text, flags=re.S
    )  # here-documents
    text = re.sub(r";\s*(then|else|fi|do|done)\b", r"\n\1\n", text)
    held = ""
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip() if raw.count("#") else raw.rstrip()
        if held and not line.strip():
            continue
        held += line.removesuffix("\\") + (" " if line.endswith("\\") else "\n")
        is_array = re.match(
            r"\s*(?:(?:export|declare|local|readonly)\s+(?:-\w+\s+)*)?\w+\+?=\(", held
        )
        is_open = held.count('"') % 2 or (held.count("'") % 2 and '"' not in held)
        if line.endswith("\\") or is_open or (is_array and not held.rstrip().endswith(")")):
            continue
        if held.strip():
            yield held.strip()
        held = ""
    if held.strip():
        yield held.strip()


def _branch(word: str, line: str, conditions: list[tuple[bool, bool]]) -> None:
    """Follow one branch of a condition, the first where it cannot be judged."""
    _, was_any = conditions.pop() if word != "if" and conditions else (False, False)
    if word != "fi":
        taken = not was_any and (word == "else" or _holds(line))
        conditions.append((taken, taken or was_any))


def _holds(line: str) -> bool:
    if match := _TEXTS.search(line):
        return (match[1] == match[3]) == (match[2] in ("==", "=", "-eq"))
    if match := _EMPTY.search(line):
        return bool(match[2].strip()) == (match[1] == "-n") and "$" not in match[2]
    return True


def _expanded(text: str, known: dict[str, str]) -> str:
    """Return a text with the variables that are known; others stay as they are written."""
    for _ in range(_MOST_ROUNDS):
        before = text
        text = _ARRAY.sub(lambda m: known.get(m[2], ""), text)
        text = _BRACED.sub(
            lambda m: known[m[1]] if known.get(m[1]) else m[0] if m[2] is None
            else m[2].strip("\"'"), text,
        )  # fmt: skip
        text = _BARE.sub(lambda m: known.get(m[1], m[0]), text)
        text = re.sub(
            r"\$\(\(([^()$]*)\)\)",
            lambda m: (
                "$((" + re.sub(r"[A-Za-z_]\w*", lambda n: known.get(n[0], n[0]), m[1]) + "))"
            ),
            text,
        )
        text = _CHOICE.sub(r"\1", _SUM.sub(lambda m: _computed(m[1]), text))
        if text == before or len(text) > 1 << 20:
            break
    return text


def _computed(sum_: str) -> str:
    """Return a sum or product of whole numbers, from left to right; its text where it is none."""
    parts = re.fullmatch(r"\s*(\d{1,12})((?:\s*[*/+-]\s*\d{1,12}){0,5})\s*", sum_)
    if parts is None:
        return f"$[{sum_}]"
    total = int(parts[1])
    for sign, number in re.findall(r"([*/+-])\s*(\d+)", parts[2]):
        other = int(number)
        by = {"*": total * other, "+": total + other, "-": total - other, "/": total}
        total = total // max(other, 1) if sign == "/" else by[sign]
    return str(total)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()
