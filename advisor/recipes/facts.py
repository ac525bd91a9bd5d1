"""What a recipe says, by the names of options: keys that were read, and what they come to."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.collectors.errors import counted
from advisor.errors import UsageError
from advisor.recipes.tables import is_elsewhere, meanings
from advisor.recipes.text import UNRESOLVED, flat, plain

Facts = dict[str, Any]
_SWITCH: Final = {"true": True, "yes": True, "on": True, "1": True, "auto": True, "false": False,
                  "no": False, "off": False, "0": False, "none": False, "null": False}  # fmt: skip


@dataclass(slots=True)
class Config:
    """A recipe's keys by dotted names, with those that were read.

    ``path``: beside which the files lie that it names; ``ranks``: that whatever starts it says;
    ``devices``: that it is started on where nothing says so; ``rounds``: of a loop that starts it.
    """

    path: Path
    table: dict[str, Any]
    ranks: int | None = None
    devices: int | None = None
    rounds: int = 1
    keys: Facts = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    asked: dict[str, str] = field(default_factory=dict)  # key: what its value leaves open

    def __post_init__(self) -> None:
        self.keys = flat(self.table)

    def get(self, *names: str) -> Any:
        """Return what the first of these keys says; a table below it is flat. None for nothing."""
        found = None
        for name in names:
            self.read.add(name)
            value = self.keys.get(name)
            if value is None:
                start = f"{name}."
                value = {k[len(start) :]: v for k, v in self.keys.items() if k.startswith(start)}
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            if isinstance(text, str) and UNRESOLVED.search(text):
                self.asked[name] = text
            elif found is None and value not in ("", {}, None):
                found = value
        return found

    def whole(self, *names: str) -> int | None:
        """Return a whole number above 0; -1 and the like mean that nothing is said."""
        value = self.number(*names)
        if value is None or value <= 0:
            return None
        if value != int(value):
            raise self._wrong(names, value, "a whole number")
        return int(value)

    def number(self, *names: str) -> float | None:
        """Return a number."""
        value = self.get(*names)
        if value is None or value in ("auto", "none", "None", "null"):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
            raise self._wrong(names, value, "a number")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return whether a switch is on; ``auto`` is on."""
        value = self.get(*names)
        if value is None:
            return default
        if (word := str(value).strip().lower()) not in _SWITCH:
            raise self._wrong(names, value, "yes or no")
        return _SWITCH[word]

    def text(self, *names: str) -> str | None:
        """Return a word."""
        value = self.get(*names)
        if isinstance(value, dict | list):
            raise self._wrong(names, value, "one word")
        return None if value is None else str(value)

    def words(self, *names: str) -> list[str]:
        """Return a list of words, which may stand in one text, or each be the path of a table."""
        value = self.get(*names) or []
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        value = value if isinstance(value, list) else [value]
        return [str(one.get("path") if isinstance(one, dict) else one) for one in value]

    def choice(self, table: str, *names: str, default: str = "") -> str | None:
        """Return what a word means by a table; an unknown one stays among what is not read."""
        value, known = self.text(*names), meanings(table)
        if value is not None and value.lower() not in known:
            self.read -= set(names)
            value = None
        return known.get((value or default).lower())

    def facts(self, rows: Mapping[str, str]) -> Facts:
        """Return what a table of facts finds, as the file of tables says it is read."""
        found: Facts = {}
        for name, row in rows.items():
            how, said, *rest = row.split()
            kind, _, more = how.partition(":")
            keys = said.split(",")
            if kind == "is":
                found[name] = _value(said)
            elif kind == "choice":
                found[name] = self.choice(more, *keys, default="".join(rest))
            elif kind == "switch":
                on, off = more.split(":")
                found[name] = _value(on if True in {self.flag(key) for key in keys} else off)
            else:
                value = getattr(self, kind)(*keys)
                found[name] = plain(rest[0]) if value is None and rest else value
        return found

    def _wrong(self, names: Iterable[str], value: Any, what: str) -> UsageError:
        name = next((one for one in names if self.keys.get(one) is not None), next(iter(names)))
        return UsageError(
            f"{self.path}: {name}: cannot read {str(value)[:40]!r} as {what}",
            hint="correct the file, or say it with a flag",
        )

    def not_understood(self, tool: str) -> Iterator[str]:
        """Yield the keys that say something, were not read, and may change a step."""
        ignored = is_elsewhere(tool)
        for name, value in self.keys.items():
            above = {name.rsplit(".", n)[0] for n in range(name.count(".") + 1)}
            is_said = value not in (None, "", False, [], {})
            if is_said and not above & self.read and not ignored.match(name.replace("-", "_")):
                yield name


def _value(word: str) -> Any:
    return {"-": None, "true": True, "false": False}.get(word, plain(word))


_NEEDED: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("which model it trains", "say it: --model NAME, or --model path/config.json"),
    "sequence": ("how many tokens a sample has", "say it: --sequence 2048"),
    "image": ("how large its images are", "say it: --image 512"),
    "cnn": (
        "its network in numbers, and none of its family is known here",
        "record a step: advisor profile --rehearse; or name one like it: --cnn NUMBERS",
    ),
    "vocabulary": ("how many words the vocabulary has", "say it: --vocabulary 32000"),
}
# Facts that are no options themselves, but make one.
_MADE: Final = ("accumulation", "ranks", "epochs_said", "samples", "data", "packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe that was read: answers by the names of options, and what is said about them."""

    path: Path
    tool: str
    answers: Facts
    notes: tuple[str, ...]
    needs: tuple[str, ...]  # names of options that the recipe has to say, or else a flag
    devices: int | None = None  # that it starts on, where it or what starts it says so

    def check(self, answers: Mapping[str, Any]) -> None:
        """Refuse answers that lack what is needed; the hint has the flag."""
        for name in self.needs:
            if answers.get(name) is None and not (name == "model" and answers.get("layers")):
                what, hint = _NEEDED[name]
                raise UsageError(f"{self.path} does not say {what}", hint=hint)


def recipe_of(config: Config, tool: str, name: str, facts: Facts) -> Recipe:
    """Return the answers that facts come to, and notes on what is not among them.

    ``tool``: by its key in the tables; ``name``: as people write it; ``facts``: by names of
    options, and of ``_MADE``: micro-batches accumulated, ranks, epochs and samples of the data
    set, its places, and whether samples are packed.
    """
    answers = {n: v for n, v in facts.items() if v is not None and n not in _MADE}
    notes = [
        *_model(config, answers),
        *_batch(config, facts, answers),
        *_length(config, facts, answers),
    ]
    if config.rounds > 1:
        notes.append(f"the first of {config.rounds} trainings that a loop starts")
    if config.asked:
        said = ", ".join(f"{key} ({value[:40]})" for key, value in config.asked.items())
        notes.append(f"left open, so that a flag must say it: {said}")
    if unknown := sorted(config.not_understood(tool)):
        more = f" and {len(unknown) - 12} more" if len(unknown) > 12 else ""
        notes.append(f"not understood, and left out: {', '.join(unknown[:12])}{more}")
    needs = tuple(n for n in _NEEDED if n in facts and facts[n] is None)
    needs += () if {"model", "layers", "cnn"} & facts.keys() else ("model",)
    return Recipe(
        path=config.path, tool=name, answers=answers, notes=tuple(notes), needs=needs,
        devices=config.ranks or facts.get("ranks"),
    )  # fmt: skip


_IN_HUB_CACHE: Final = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


def _model(config: Config, answers: Facts) -> Iterator[str]:
    """Name the model by its folder's name where that is on another machine; say so."""
    said = str(answers.get("model") or "")
    is_path = said.startswith((".", "/", "~")) or said.count("/") > 1
    if is_path and not any(os.path.exists(one) for one in (said, config.path.parent / said)):
        match = _IN_HUB_CACHE.search(said)
        answers["model"] = "/".join(match.groups()) if match else Path(said).name
        yield f"{said} is not here: the model is taken for what its folder is called"


def _batch(config: Config, facts: Facts, answers: Facts) -> Iterator[str]:
    """Add the samples of a step; yield what they are made of."""
    each, accumulated = answers.get("micro_batch"), facts.get("accumulation") or 1
    if not each or "batch" in answers:
        return
    split = math.prod(answers.get(name) or 1 for name in ("tp", "pp", "cp"))
    ranks = max((config.ranks or facts.get("ranks") or config.devices or 0) // split, 0)
    answers["batch"] = each * accumulated * (ranks or 1)
    said = "" if ranks else ": how many is not said, and one is assumed (--ranks)"
    yield (
        f"{counted(answers['batch'], 'sample')} a step: {each} x {accumulated} accumulated x "
        f"{counted(ranks or 1, 'rank')}{said}"
    )


def _length(config: Config, facts: Facts, answers: Facts) -> Iterator[str]:
    """Add the length to the answers where it is known; yield what is to be said of it."""
    sequence, places = answers.get("sequence"), facts.get("data") or []
    if facts.get("packed") is False and sequence:
        yield (
            f"samples are not packed: each counts as {sequence:,} tokens, its most "
            "(--sequence says their mean)"
        )
    epochs = facts.get("epochs_said")
    if not epochs or any(name in answers for name in ("total_steps", "total_samples", "tokens")):
        return
    samples = facts.get("samples") or local_samples(config.path.parent, places)
    said = f"{counted(epochs, 'epoch')} of {', '.join(map(str, places[:3])) or 'the data'}"
    if facts.get("packed"):
        yield f"{said}, packed: say how many tokens that is (--tokens)"
    elif samples:
        answers["total_samples"] = epochs * samples
        yield f"{said}: {samples:,} samples each"
    else:
        yield f"{said}, not counted here: say all its samples (--total-samples)"


_LARGEST_DATA: Final = 256 << 20  # bytes of a data file that is counted


def local_samples(folder: Path, places: Iterable[Any]) -> int | None:
    """Return the samples of data files that lie here; None where one is elsewhere."""
    total = 0
    for place in places:
        path = folder / str(place)
        if not os.path.isfile(path) or path.stat().st_size > _LARGEST_DATA:
            return None
        if path.suffix == ".json" and isinstance(held := _json(path), list):
            total += len(held)
        elif path.suffix in (".json", ".jsonl", ".csv", ".txt"):
            with path.open("rb") as file:
                total += sum(bool(line.strip()) for line in file) - (path.suffix == ".csv")
        else:
            return None
    return total or None


def _json(path: Path) -> Any:
    try:
        return bounded.read_json(path)
    except (OSError, ValueError):
        return None  # lines of JSON under the other name
