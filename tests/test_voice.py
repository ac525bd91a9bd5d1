"""Help texts, errors and notes: plain English that stands alone, within any terminal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documentation import ROOT, tool
from typer.testing import CliRunner

from advisor.cli.program import app

# Patterns of prose that reads as translated, with what is written instead.
REFUSED = {
    r"\bmakes? no sense\b": "is out of range, is not valid",
    r"\bmeans nothing\b": "is not a setting, does not apply",
    r"\bin vain\b": "timed out waiting for",
    r"\bdear(er|est|ly)?\b": "expensive",
    r"(?<![Tt]here )\bis no (?!longer\b|slower\b|more\b|less\b|faster\b)": "is not a",
    r"^Of (the|a|all)\b": "name the thing itself",
    r"\bstands? (there|twice|above|below)\b": "appears, is",
    r"\bmend\b": "correct",
    r"\blearnt\b": "learned",
    r"\btakes? this one away\b": "removes",
    r"\bon offer\b": "available",
    r"\bLength of the job\b": "what is counted: epochs, steps, samples",
    r"\b(?:which run is it|what did it run on)\b": "say what is missing",
    r"\bof the money\b|\bit takes .*times as long\b": "#4 is 16 % cheaper and 1.7 times slower",
    r"is not measured: go by|go by the interval": "We have no test results for ...",
    r"\beach left out of the fit|source left out\b": "(held-out test)",
    r"\bgain too little\b": "too close to a listed row to tell apart",
    r"\bnot known well enough\b": "too noisy, too uncertain",
    r"\bwould measure better\b|\bfill the machine\b": "set OMP_NUM_THREADS=1 for ...",
    r"\bnot in time and cost\b|\bbringing in\b": "Data download is not included.",
    r"\bmostly \{|\bMost of a step is\b": "limited by",
    r"\bundated (?:derived )?price\b": "price without a date",
    r"\b(?:shortest bill|results out|data in)$": "minimum billing, downloading results",
    r"\bstops by hand\b": "manual stops",
    r"\bnobody knows\b": "is unknown",
    r"\bWhat would change it\b": "What would change the answer",
    r"\bpays off where\b": "say which row is faster, and its cost",
    r"\bprofile on with\b": "profile for longer",
    r"\bis learned may differ\b|\bthe same is learned\b": "training gives the same result",
}
HOUSES = ("advisor", "lab", "collectors", "planners")
COMMANDS = tool("cli_reference").verbs()


def said() -> Iterator[tuple[str, str]]:
    """Yield every string of the program that is no docstring, with its place."""
    for house in HOUSES:
        for path in sorted((ROOT / house).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield from _strings(path)


def _strings(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def test_nothing_that_is_said_reads_as_translated() -> None:
    found = [
        f"{place}: {text!r}: write {instead}"
        for place, text in said()
        for pattern, instead in REFUSED.items()
        if " " in text and re.search(pattern, text)
    ]
    assert not found, "\n".join(found)


def test_the_patterns_find_what_they_are_for() -> None:
    bad = ["it makes no sense", "'1h30m' is no duration", "waited in vain", "may be found dear",
           "Of the intervals: 0.9.", "Length of the job.", "For 84% of the money",
           "is not measured: go by the interval", "each left out of the fit",
           "its threads fill the machine", "not in time and cost: data"]  # fmt: skip
    good = ["there is no run", "is no longer sold", "is no slower", "dearth"]
    for text, is_refused in (*((one, True) for one in bad), *((one, False) for one in good)):
        assert any(re.search(pattern, text) for pattern in REFUSED) == is_refused, text


def test_percentages_are_printed_by_one_formatter() -> None:
    """ "16 %", by ``quantities.percent_text``: what is typed ("--gain 5%") has no space."""
    found = []
    for path in sorted((ROOT / "advisor").rglob("*.py")):
        if any(parent.is_symlink() for parent in path.parents):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FormattedValue) and isinstance(
                node.format_spec, ast.JoinedStr
            ):
                spec = "".join(
                    one.value for one in node.format_spec.values
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )  # fmt: skip
                if spec.endswith("%"):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_has_a_sentence_of_its_own(name: str) -> None:
    texts: dict[str, str] = {}
    for param in COMMANDS[name].params:
        text = " ".join((param.help or "").split())
        if param.name in ("help", "install_completion", "show_completion"):
            continue
        assert re.match(r"[A-Z`-]|seconds:", text), (param.name, text)
        assert text.endswith((".", ")")), (param.name, text)
        assert not re.search(r"<|\brange\b", str(param.metavar)), param.name
        if param.param_type_name == "option":  # an argument may stand in for a flag
            assert texts.setdefault(text, param.name) == param.name, text


@pytest.mark.parametrize(("columns", "name"), [
    *((80, name) for name in ["", *sorted(COMMANDS)]), (120, ""), (120, "recommend"),
])  # fmt: skip
def test_help_fits_the_terminal_and_nothing_is_cut(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERMINAL_WIDTH", str(columns))
    shown = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="advisor")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if re.match(r"  [a-z][\w-]*  .*\.\.\.$", line)]


def _first(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_verb_is_described_by_sentences(name: str) -> None:
    assert re.match(r"[A-Z].*[.)]$", _first(COMMANDS[name])), _first(COMMANDS[name])


@pytest.mark.parametrize("verb", ["recommend", "predict", "plan", "profile", "runs"])
def test_a_misspelt_verb_names_the_nearest(verb: str) -> None:
    for slip in (verb[:2] + verb[3:], verb + "s"):
        found = CliRunner().invoke(app, [slip])
        assert found.exit_code == 2
        assert f"Did you mean '{verb}'?" in found.output
    assert "Did you mean" not in CliRunner().invoke(app, ["frobnicate"]).output
