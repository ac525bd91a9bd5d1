"""A question as one record, and the one way into it from flags, keywords, files and JSON."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from advisor.answer import COMPLETIONS, CompletionWay, object_in
from advisor.ask.entries import (
    FILES,
    GIVEN,
    JOB_PANEL,
    LAYOUT_PANEL,
    LIMITS,
    OPTIONS,
    RENTED,
    SOFTWARE,
    TEXT,
    Entry,
    choice,
    entries_of,
    option,
)  # fmt: skip
from advisor.ask.requests import (
    LENGTH_FIELDS,
    SOURCE_FIELDS,
    ClusterRequest,
    Constraints,
    JobSpec,
    LayoutRequest,
    Objective,
    SetupRequest,
)
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.recipes import Recipe

SCHEMA_VERSION: Final = 1
# The parts of a question, each with the panel of its options that name no other.
_PARTS: Final[Mapping[str, tuple[type[Any], str]]] = {
    "job": (JobSpec, JOB_PANEL), "constraints": (Constraints, OPTIONS),
    "layout": (LayoutRequest, LAYOUT_PANEL), "setup": (SetupRequest, SOFTWARE),
    "cluster": (ClusterRequest, GIVEN),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that is asked."""

    job: JobSpec = field(default_factory=JobSpec)
    constraints: Constraints = field(default_factory=Constraints)
    layout: LayoutRequest = field(default_factory=LayoutRequest)
    setup: SetupRequest = field(default_factory=SetupRequest)
    cluster: ClusterRequest = field(default_factory=ClusterRequest)
    # fmt: off
    catalogue: str | None = option("Folder of a price snapshot other than the one in use.",
        TEXT, panel=FILES)
    overrides: str | None = option("Your own prices, machines and quotas (default: overrides.csv "
        "in the configuration folder, if it is there).", TEXT, panel=FILES)
    objective: Objective = option("What to minimise: time or cost (default: time).",
        choice("time", "cost"), default="time", panel=LIMITS)
    completion: CompletionWay | None = option("What the job runs on until it is done: on-demand, "
        "spot, spot-with-fallback or elastic-spot (default: on-demand).",
        choice(*COMPLETIONS[:4]), panel=RENTED)
    # fmt: on

    @classmethod
    def read(
        cls, given: Mapping[str, Any], *, names: Collection[str] | None = None,
        are_flags: bool = False,
    ) -> Question:  # fmt: skip
        """Return the question that names and values ask.

        ``given``: keys of ``ENTRIES`` or ``ALIASES``; None leaves a thing open; ``names``: the
        names that are understood here; all by default; ``are_flags``: whether messages show names
        as flags of the command line.

        Raises UsageError if a name is unknown or given twice, or a value makes no sense.

        Examples
        --------
        >>> asked = Question.read({"model": "llama", "tokens": "15B", "deadline": "1h30m"})
        >>> asked.job.tokens, asked.constraints.deadline_h
        (15000000000.0, 1.5)
        """
        if given.get("recipe") is not None:
            _check_name("recipe", names)  # a browser names no file
            given = with_recipe(given, read_recipe(given), names)
        parts: dict[str, dict[str, Any]] = {name: {} for name in (*_PARTS, "question")}
        for name, value in _canonical(given, names).items():
            entry = ENTRIES[name]
            shown = flag_of(name) if are_flags else name
            parts[entry.part][entry.field] = entry.kind.read(value, shown)
        own = parts.pop("question")
        return cls(**{name: _PARTS[name][0](**values) for name, values in parts.items()}, **own)

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form, which ``read`` reads: what differs from the defaults."""
        record: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        default = Question()
        for name, entry in ENTRIES.items():
            value = _value(self, entry)
            if value != _value(default, entry):
                record[name] = entry.kind.show(value)
        return record


def _value(question: Question, entry: Entry) -> Any:
    part = question if entry.part == "question" else getattr(question, entry.part)
    return getattr(part, entry.field)


ENTRIES: Final[Mapping[str, Entry]] = {
    one.name: replace(one, part=part, panel=panel if one.panel == OPTIONS else one.panel)
    for part, (record, panel) in (*_PARTS.items(), ("question", (Question, FILES)))
    for one in entries_of(record)
}
Names = tuple[str, ...]


def _part(name: str) -> Names:
    return tuple(entry for entry, one in ENTRIES.items() if one.part == name)


JOB: Final[Names] = _part("job")
CONSTRAINTS: Final[Names] = _part("constraints")
LAYOUT: Final[Names] = _part("layout")
SETUP: Final[Names] = _part("setup")
CLUSTER: Final[Names] = _part("cluster")
PRICES: Final[Names] = ("catalogue", "overrides")


class Alias(NamedTuple):
    """Another name, and what its value means under the name it stands for."""

    name: str
    meaning: Callable[[Any], Any]
    help: str = ""


ALIASES: Final[Mapping[str, Alias]] = {
    "global_batch": Alias("batch", lambda value: value),
    "compile": Alias("kernels", lambda value: "compiled" if value else "eager",
        "Run through torch.compile: short for --kernels compiled."),
    "finetune": Alias("stack", lambda value: "trainer" if value else None,
        "Fine-tune as Hugging Face's Trainer does by default: short for --stack trainer."),
    "is_compiled": Alias("kernels", lambda value: "compiled" if value else None),
    "quantised_base": Alias("base_bits", lambda value: 4 if value else 16,
        "Keep the frozen weights under the adapters in 4 bits (QLoRA)."),
}  # fmt: skip


def flag_of(name: str) -> str:
    """Return the flag of the command line that stands for a name.

    Examples
    --------
    >>> flag_of("max_nodes"), flag_of("job_file"), flag_of("spot")
    ('--max-nodes', '--job', '--spot')
    """
    flags = ENTRIES[name].flags if name in ENTRIES else ()
    return flags[0].partition("/")[0] if flags else f"--{name.replace('_', '-')}"


def _canonical(given: Mapping[str, Any], names: Collection[str] | None) -> dict[str, Any]:
    """Return what is given under its first name; refuse what is unknown."""
    if given.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise UsageError(
            f"a question of schema version {given['schema_version']!r}",
            hint=f"this advisor reads version {SCHEMA_VERSION}",
        )
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "schema_version" or value is None:
            _check_name(name, names)
            continue
        alias = ALIASES.get(name)
        first, meant = (name, value) if alias is None else (alias.name, alias.meaning(value))
        _check_name(first, names, typed=name)
        if meant is None:
            continue
        if found.setdefault(first, meant) != meant:
            raise UsageError(f"{first} is given twice", hint=f"leave {name} out")
    return found


def _check_name(name: str, names: Collection[str] | None, *, typed: str | None = None) -> None:
    typed = typed or name
    if name == "schema_version":
        return
    known = {*ENTRIES, *ALIASES} if names is None else {*names, *_aliases(names)}
    if name in known:
        return
    if name in ENTRIES or name in ALIASES:
        raise UsageError(f"{typed!r} does not apply here", hint="leave it out")
    close = difflib.get_close_matches(typed, sorted(known), n=1, cutoff=0.5)
    raise UsageError(
        f"there is no option {typed!r}",
        hint=f"did you mean {close[0]}?" if close else "see: advisor recommend --help",
    )


def _aliases(names: Collection[str]) -> set[str]:
    return {alias for alias, of in ALIASES.items() if of.name in names}


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return answers by name, the later layer's where two have one.

    What names the job belongs together, and so does its length: a layer that names a run replaces
    an earlier layer's model with all its dimensions.

    Examples
    --------
    >>> merged({"model": "llama", "sequence": 4096, "top": 5}, {"run": "latest"})
    {'top': 5, 'run': 'latest'}
    """
    found: dict[str, Any] = {}
    for layer in layers:
        given = _canonical(layer, None)
        replaced: set[str] = set()
        if given.keys() & _NAMING:
            replaced |= _names_of(SOURCE_FIELDS)
        if given.keys() & _names_of(LENGTH_FIELDS):
            replaced |= _names_of(LENGTH_FIELDS)
        found = {name: value for name, value in found.items() if name not in replaced} | given
    return found


def _names_of(job_fields: Collection[str]) -> set[str]:
    return {n for n, entry in ENTRIES.items() if entry.part == "job" and entry.field in job_fields}


_NAMING: Final = frozenset({"run", "job_file", "model", "cnn", "layers", "hidden", "recipe"})


OF_RECIPE: Final = ("recipe", "recipe_kind", "ranks")


def read_recipe(given: Mapping[str, Any]) -> Recipe:
    """Return the recipe that answers name, read as they say."""
    from advisor.recipes import recipe

    path, kind, ranks = (given.get(name) for name in OF_RECIPE)
    ranks = None if ranks is None else ENTRIES["ranks"].kind.read(ranks, "ranks")
    return recipe(Path(str(path)), kind, devices=ranks)


def with_recipe(
    given: Mapping[str, Any], found: Recipe, names: Collection[str] | None = None
) -> dict[str, Any]:
    """Return answers with those of the recipe that they name, which all others overrule.

    Raises UsageError if the recipe lacks what no other answer says.
    """
    own = {n: value for n, value in given.items() if value is not None and n not in OF_RECIPE}
    said = {n: v for n, v in found.answers.items() if names is None or n in names}
    answers = merged(said, own)
    if own.keys() & {"model", "layers"} and "sequence" in said:
        answers.setdefault("sequence", said["sequence"])
    if not own.keys() & {"run", "job_file", "cnn"}:
        found.check(answers)
    return answers


def read_question(path: Path) -> dict[str, Any]:
    """Return the answers of a JSON file, as ``Question.to_record`` writes them.

    Raises UsageError if the file cannot be read, or a name or value in it makes no sense.
    """
    hint = "it is a JSON object of options"
    return checked(object_in(path, "the question in", error=UsageError, hint=hint), path)


def checked(content: Any, path: Path) -> dict[str, Any]:
    """Return what a file says, if all of it makes sense; messages name the file.

    Raises UsageError if it is no mapping, or a name or value in it makes no sense.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a question", hint="it has options and their values")
    try:
        Question.read(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from error
    return {name: value for name, value in content.items() if name != "schema_version"}
