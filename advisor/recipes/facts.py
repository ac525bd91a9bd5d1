"""What a recipe says, by the names of options: keys that were read, and what they come to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from advisor.collectors.errors import counted
from advisor.errors import UsageError
from advisor.recipes.text import UNRESOLVED, flat

# Words of keys that change neither what a step computes nor how many there are: what is learned
# (rates, seeds, decay), what is watched (logs, evaluation, checkpoints), and where files lie.
_ELSEWHERE: Final = re.compile(
    r"(^|[._])(lr|run|general|checkpointing_steps|learning|seeds?|wandb|mlflow|comet|swanlab|trackio|tensorboard|log|logs|logging|"
    r"report|eval|evals|evaluation|save|saves|saved|checkpoint|checkpointer|ckpt|checkpoints|"
    r"output|warmup|decay|beta[12]?|betas|eps|epsilon|alpha|dropout|hub|resume|tokens?|tokenizer|"
    r"template|metric|metrics|profiler|profiling|debug|name|version|scheduler|clip|norm|seed|val|"
    r"validation|test|split|prompt|prompts|cache|overwrite|plot|ddp|timeout|tags|chat|roles?|strict|"
    r"cpu|machine|main|rdzv|tpu|env|downcast|network|compute|shuffle|trust|revision|"
    r"preprocessing|num_proc|workers|prefetch|pin|lora_bias|bias|rslora|loss_watchdog.*|"
    r"init|weight_decay|momentum|wall|steps_per_print|initial|loss_scale|hysteresis|window|"
    r"sampling|sample_prompts|description|field|message|messages|column|columns|dataset|datasets|"
    r"data|early|patience|train_on_inputs|group_by_length|special|added|author|dump|monitor|"
    r"local_rank|enable_cpu_affinity|gc|nccl|master|tracker|caption|noise|snr|flip|crop|prior|"
    r"instance|class|instance_data|plugins?|path|paths|folder|dir|dirs|file|files|device|"
    r"experimental|comm|job|push|source|style|format|min|label|smoothing|neftune|greater|reader|"
    r"mask|skip|exist|verbose|project|mosaic|hsv|degrees|translate|shear|perspective|mixup|erasing"
    r")([._]|$)"
)


@dataclass(slots=True)
class Config:
    """A recipe's keys by dotted names, with those that were read.

    ``folder``: beside which files that it names lie; ``ranks``: that whatever starts it says.
    """

    path: Path
    table: dict[str, Any]
    ranks: int | None = None
    keys: dict[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    asked: dict[str, str] = field(default_factory=dict)  # key: what its value leaves open

    def __post_init__(self) -> None:
        self.keys = flat(self.table)

    def get(self, *names: str) -> Any:
        """Return the first of these keys that says something; None where none does."""
        found = None
        for name in names:
            self.read.add(name)
            value = self.keys.get(name)
            if value is None and any(key.startswith(f"{name}.") for key in self.keys):
                value = {
                    key[len(name) + 1 :]: one
                    for key, one in self.keys.items()
                    if key.startswith(f"{name}.")
                }
            if isinstance(value, str) and UNRESOLVED.search(value):
                self.asked[name] = value
                continue
            if found is None and value not in (None, ""):
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

    def whole_or(self, name: str, word: str) -> int | None:
        """Return a whole number; None where a word stands in its place."""
        return None if self.get(name) in (word, str(-1), -1) else self.whole(name)

    def number(self, *names: str) -> float | None:
        """Return a number."""
        value = self.get(*names)
        if value is None or value in ("auto", "none", "None", "null"):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self._wrong(names, value, "a number")
        if abs(value) > 1e18:
            raise self._wrong(names, value, "a number of this world")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return whether a switch is on; ``auto`` is on."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, str):
            word = value.strip().lower()
            if word in ("true", "yes", "on", "1", "auto"):
                return True
            if word in ("false", "no", "off", "0", "none", "null"):
                return False
            raise self._wrong(names, value, "yes or no")
        if not isinstance(value, bool | int):
            raise self._wrong(names, value, "yes or no")
        return bool(value)

    def text(self, *names: str) -> str | None:
        """Return a word."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, dict | list):
            raise self._wrong(names, value, "one word")
        return str(value)

    def words(self, *names: str) -> list[str]:
        """Return a list of words, which may stand with commas in one text."""
        value = self.get(*names)
        if value is None:
            return []
        if isinstance(value, str):
            value = re.split(r"[,\s]+", value)
        return [str(one) for one in value] if isinstance(value, list) else [str(value)]

    def table_of(self, *names: str) -> dict[str, Any]:
        """Return a table below a key, flat; empty where there is none."""
        value = self.get(*names)
        if isinstance(value, dict):
            self.read |= {f"{name}.{key}" for name in names for key in value}
            return dict(value)
        return {}

    def choice(self, known: Mapping[str, Any], *names: str, default: str = "") -> Any:
        """Return what a word means; what is not known is noted as not understood."""
        value = self.text(*names)
        word = (value or default).lower()
        if word in known:
            return known[word]
        if value is not None:
            self.read -= set(names)
        return known.get(default.lower())

    def _wrong(self, names: Iterable[str], value: Any, what: str) -> UsageError:
        name = next((one for one in names if self.keys.get(one) is not None), next(iter(names)))
        return UsageError(
            f"{self.path}: {name}: cannot read {str(value)[:40]!r} as {what}",
            hint="correct the file, or say it with a flag",
        )

    def not_understood(self) -> Iterator[str]:
        """Yield the keys that say something, were not read, and may change a step."""
        for name, value in self.keys.items():
            above = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
            if name in self.read or above & self.read or value in (None, "", False, [], {}):
                continue
            if not _ELSEWHERE.search(name.replace("-", "_").lower()):
                yield name


# Names of facts that are no options themselves, but make one.
_MADE: Final = ("accumulation", "ranks", "epochs_said", "samples", "data", "packed", "steps_said")


_NEEDED: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("which model it trains", "say it: --model NAME, or --model path/config.json"),
    "sequence": ("how many tokens a sample has", "say it: --sequence 2048"),
    "image": ("how large its images are", "say it: --image 512"),
    "vocabulary": ("how many words the vocabulary has", "say it: --vocabulary 32000"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe that was read: answers by the names of options, and what is said about them."""

    path: Path
    tool: str
    answers: dict[str, Any]
    notes: tuple[str, ...]
    needs: tuple[str, ...] = ()  # names of options that the recipe has to say, or else a flag

    def check(self, answers: Mapping[str, Any]) -> None:
        """Refuse answers that lack what is needed; the hint has the flag."""
        for name in self.needs:
            if answers.get(name) is None and not (name == "model" and answers.get("layers")):
                what, hint = _NEEDED[name]
                raise UsageError(f"{self.path} does not say {what}", hint=hint)


def recipe_of(config: Config, tool: str, facts: Mapping[str, Any]) -> Recipe:
    """Return the answers that facts come to, and notes on what is not among them.

    ``facts``: by names of options, and of ``_MADE``: micro-batches accumulated, ranks, epochs and
    samples of the data set, its places, and whether samples are packed.
    """
    answers = {n: v for n, v in facts.items() if v is not None and n not in _MADE}
    notes: list[str] = []
    ranks = config.ranks or facts.get("ranks")
    split = math.prod(answers.get(name) or 1 for name in ("tp", "pp", "cp"))
    ranks = max(ranks // split, 1) if ranks else None
    each, accumulated = answers.get("micro_batch"), facts.get("accumulation") or 1
    if each and "batch" not in answers:
        answers["batch"] = each * accumulated * (ranks or 1)
        said = "" if ranks else ": how many is not said, and one is assumed"
        notes.append(
            f"{counted(answers['batch'], 'sample')} a step: {each} x {accumulated} accumulated x "
            f"{counted(ranks or 1, 'rank')}{said} (--batch)"
        )
    notes += _length(config, facts, answers)
    if config.asked:
        said = ", ".join(f"{name} ({value[:40]})" for name, value in config.asked.items())
        notes.append(f"left open, so that a flag must say it: {said}")
    if unknown := sorted(config.not_understood()):
        more = f" and {len(unknown) - 12} more" if len(unknown) > 12 else ""
        notes.append(f"not understood, and left out: {', '.join(unknown[:12])}{more}")
    needs = tuple(n for n in _NEEDED if n in facts and facts[n] is None)
    needs += ("model",) if not {"model", "layers"} & facts.keys() else ()
    return Recipe(path=config.path, tool=tool, answers=answers, notes=tuple(notes), needs=needs)


def _length(config: Config, facts: Mapping[str, Any], answers: dict[str, Any]) -> Iterator[str]:
    """Add the length to the answers where it is known; yield what is to be said of it."""
    if facts.get("packed") is False and (sequence := answers.get("sequence")):
        yield (
            f"samples are not packed: each counts as {sequence:,} tokens, its most "
            "(--sequence says their mean)"
        )
    if any(name in answers for name in ("total_steps", "total_samples", "tokens")):
        return
    epochs, places = facts.get("epochs_said"), facts.get("data") or []
    samples = facts.get("samples") or local_samples(config.path.parent, places)
    if not epochs:
        return
    times = counted(epochs, "epoch")
    names = ", ".join(map(str, places[:3])) or "the data"
    if facts.get("packed"):
        yield f"{times} of {names}, packed: say how many tokens that is (--tokens)"
    elif samples:
        answers["total_samples"] = epochs * samples
        yield f"{times} of {samples:,} samples of {names}"
    else:
        yield f"{times} of {names}, not counted here: say all its samples (--total-samples)"


def local_samples(folder: Path, places: Iterable[Any]) -> int | None:
    """Return the samples of data files that lie here; None where one is elsewhere."""
    total = 0
    for place in places:
        path = folder / str(place)
        count = _samples_of(path) if path.is_file() else None
        if count is None:
            return None
        total += count
    return total or None


_LARGEST_DATA: Final = 256 << 20  # bytes of a data file that is counted


def _samples_of(path: Path) -> int | None:
    if path.stat().st_size > _LARGEST_DATA:
        return None
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet  # type: ignore[import-untyped]
        except ImportError:
            return None
        return int(parquet.ParquetFile(path).metadata.num_rows)
    if path.suffix in (".jsonl", ".csv", ".txt"):
        with path.open("rb") as file:
            return max(sum(bool(line.strip()) for line in file) - (path.suffix == ".csv"), 0)
    if path.suffix == ".json":
        from advisor.collectors import bounded

        try:
            held = bounded.read_json(path)
        except (OSError, ValueError):  # lines of JSON under the other name
            with path.open("rb") as file:
                return sum(bool(line.strip()) for line in file)
        return len(held) if isinstance(held, list) else None
    return None
