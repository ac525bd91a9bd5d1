"""What the documentation says of the command line is what the command line says of itself."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from documentation import FENCE, ROOT, Block, blocks, pages, tool

REFERENCE = tool("cli_reference")

# Flags in our pages that belong to somebody else's program.
FOREIGN = {
    "--nproc-per-node": "torchrun",
    "--no-cuda": "what scripts are told of devices",
    "--device": "what scripts are told of devices",
    "--cpu": "what scripts are told of devices",
    "--max-batches": "a script's own option",
    "--batch-size": "a script's own option",
    "--password": "an example of a secret",
    "--api-key": "an example of a secret",
    "--token-length": "no secret: an example",
    "--key-dim": "no secret: an example",
    "--sort-key": "no secret: an example",
    "--login": "an example of what is not recognised",
}  # fmt: skip
# Programs whose lines in our pages are not ours to check.
OTHERS = (
    "pip", "pipx", "uv", "pytest", "make", "sacct", "kubectl", "torchrun", "cd", "git", "npm",
    "docker", "pre-commit", "dask", "ray", "ls", "cp", "export", "python", "apt-get",
)  # fmt: skip


@cache
def verbs() -> dict[str, set[str]]:
    return {name: REFERENCE.flags(command) for name, command in REFERENCE.verbs().items()}


@cache
def all_flags() -> frozenset[str]:
    return frozenset(flag for flags in verbs().values() for flag in flags) | {"--version"}


def split_verb(words: list[str]) -> tuple[str, list[str]]:
    """Return the longest verb that the words begin with, and the words after it."""
    for length in (2, 1):
        if " ".join(words[:length]) in verbs():
            return " ".join(words[:length]), words[length:]
    return "", words


def own_words(verb: str, words: list[str]) -> list[str]:
    """Return the words of ours: after a script or ``--`` they are the script's."""
    if verb == "profile":
        command = REFERENCE.verbs()[verb]
        takes_value = {
            flag for p in REFERENCE.options(command) if not getattr(p, "is_flag", False)
            for flag in p.opts
        }  # fmt: skip
        ours: list[str] = []
        for word in words:
            is_value = bool(ours) and ours[-1] in takes_value
            if word in ("--", "-m") or (not word.startswith("-") and not is_value):
                return ours
            ours.append(word)
    return words


def command_lines(block: Block) -> Iterator[str]:
    """Return the commands of a console block, each on one line."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    for line in text.splitlines():
        line = re.sub(r"^\$ ", "", line)
        if line.startswith("advisor "):
            yield re.split(r"\s+(?:#|\||&&|;|>)\s", f"{line} ", maxsplit=1)[0]


def spans() -> Iterator[tuple[str, str]]:
    """Return every code span outside fenced blocks, with its page."""
    for page, text in pages().items():
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text)):
            yield page, span


def problem(line: str) -> str | None:
    """Return what is wrong with a command line that begins with ``advisor``."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        words = line.split()[1:]
    words = [word for word in words if word not in ("...", "…")]
    if not words or words[0] in ("--version", "--help") or not re.fullmatch(r"[a-z]+", words[0]):
        return None
    verb, rest = split_verb(words)
    if not verb:
        return f"no verb {words[0]!r}"
    known = set(verbs()[verb])
    known |= verbs()["train models"] if verb == "train" else set()
    if " " not in verb and any(k.startswith(f"{verb} ") for k in verbs()):
        alternatives = (rest[0] if rest else "").replace(",", " ").replace("|", " ").split()
        bad = [one for one in alternatives if re.fullmatch(r"[a-z-]+", one)
               and not one.startswith("-") and f"{verb} {one}" not in verbs()]  # fmt: skip
        if bad:
            return f"no verb {verb} {bad[0]!r}"
    for word in own_words(verb, rest):
        flag = word.split("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", flag) and flag not in known:
            return f"{verb} has no {flag}"
    return None


def test_the_pages_of_the_command_line_are_current() -> None:
    stale = list(REFERENCE.stale(REFERENCE.pages()))
    assert not stale, f"run `python docs/tools/cli_reference.py`: {stale}"


def test_every_command_shown_exists_with_its_flags() -> None:
    wrong = [
        f"{block.where}: {line}: {found}"
        for block in blocks("console", "sh", "bash", "")
        for line in command_lines(block)
        if (found := problem(line))
    ]
    wrong += [
        f"{page}: {span}: {found}"
        for page, span in spans()
        if span.startswith("advisor ") and (found := problem(span))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_flag_named_in_passing_exists() -> None:
    known = all_flags() | set(FOREIGN)
    wrong = []
    for page, span in spans():
        if span.split()[0] in OTHERS or span.startswith("advisor ") or ".py" in span:
            continue
        wrong += [
            f"{page}: `{span}`: {flag}"
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
            if flag not in known
        ]
    assert not wrong, "\n".join(wrong)


def test_flags_of_our_other_programs_stand_in_their_source() -> None:
    """``python -m advisor.lab.speed.x --flag`` and ``python examples/x.py --flag``."""
    wrong = []
    texts = [*spans(), *((b.page, line) for b in blocks("console", "sh", "") for line in
                         b.text.splitlines())]  # fmt: skip
    for page, text in texts:
        found = re.match(
            r"(?:\$ )?python (?:-m advisor\.)?((?:docs/tools/|lab\.|lab/)?[a-z_./]+)\b(.*)", text
        )
        flags = re.findall(r"(?<![\w-])--[a-z][a-z-]*", found[2]) if found else []
        if not found or not flags:
            continue
        name = found[1].removesuffix(".py").replace(".", "/") + ".py"
        paths = [ROOT / name, ROOT / "examples" / name]
        source = next((p.read_text() for p in paths if p.is_file()), None)
        if source is None:
            wrong.append(f"{page}: no program {found[1]}")
            continue
        wrong += [f"{page}: {found[1]} has no {f}" for f in flags if f'"{f}"' not in source]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("advisor recommend --budgets 5", "recommend has no --budgets"),
        ("advisor advize", "no verb 'advize'"),
        ("advisor runs lists", "no verb runs 'lists'"),
        ("advisor profile --four 5m train.py", "profile has no --four"),
        ("advisor profile train.py --whatever", None),
        ("advisor profile --for 5m -- torchrun --nproc-per-node 2 x.py", None),
        ("advisor train --data mine.jsonl", None),
    ],
)
def test_the_check_itself_finds_what_does_not_exist(line: str, why: str | None) -> None:
    assert problem(line) == why


def test_defaults_and_required_options_stand_on_the_pages() -> None:
    """The defaults printed are those that the program's functions have."""
    for name, command in REFERENCE.verbs().items():
        files = (f"{name.split()[0]}.md", "options.md")
        page = "".join((ROOT / "docs" / "cli" / one).read_text() for one in files)
        for p in REFERENCE.options(command):
            assert f"`{p.opts[0]}`" in page, (name, p.opts)
            if isinstance(p.default, int | float) and not isinstance(p.default, bool):
                shown = p.show_default if isinstance(p.show_default, str) else f"{p.default:g}"
                rows: Any = [r for r in page.splitlines() if f"`{p.opts[0]}`" in r]
                assert any(f"`{shown}`" in row for row in rows), (name, p.opts, shown)


def test_the_users_pages_stay_short() -> None:
    words = tool("words")
    users, contributors = words.counted()
    assert {"index.md", "planners.md", "planner/index.md"} <= set(users)
    assert "architecture.md" in contributors
    assert not [page for page in users if page.startswith("cli/")]
    assert sum(users.values()) <= words.MOST


def test_help_has_one_way_of_saying_a_default_and_no_cut_sentence() -> None:
    """As people read it: "(default: 1)" in the sentence, and lists of verbs without three dots."""
    for name, command in REFERENCE.verbs().items():
        with command.make_context(name, ["--help"], resilient_parsing=True) as context:
            said = command.get_help(context)
        assert not re.search(r"\[default|x>=|x<=", said), name
        listed = said.partition("\nCommands:\n")[2]
        assert "..." not in listed, name


def test_the_targets_of_export_are_named_in_its_help() -> None:
    from advisor.export import TARGETS

    (to,) = (p for p in REFERENCE.options(REFERENCE.verbs()["export"]) if p.opts == ["--to"])
    named = to.help.partition(": ")[2].partition(".")[0]
    assert set(re.findall(r"[a-z]+", named)) == {*TARGETS, "or"}
