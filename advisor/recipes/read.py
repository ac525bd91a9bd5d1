"""The one way into a recipe: which tool wrote the file, and what its reader makes of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from advisor.errors import UsageError
from advisor.recipes.facts import Config, Recipe, recipe_of
from advisor.recipes.launch import Start, starts
from advisor.recipes.submissions import submitted
from advisor.recipes.text import documents, read_text


class _Tool(NamedTuple):
    name: str  # as people write it
    home: str  # module of this room
    reader: str = "read"
    marks: str = "MARKS"


TOOLS: Final[Mapping[str, _Tool]] = {
    "axolotl": _Tool("Axolotl", "axolotl"),
    "llamafactory": _Tool("LLaMA-Factory", "llama_factory"),
    "torchtune": _Tool("torchtune", "torchtune"),
    "trainer": _Tool("TRL and Hugging Face", "hugging_face"),
    "litgpt": _Tool("LitGPT", "litgpt"),
    "torchtitan": _Tool("torchtitan", "torchtitan"),
    "megatron": _Tool("Megatron-LM", "megatron"),
    "nemo": _Tool("NeMo", "megatron", "read_nemo", "NEMO_MARKS"),
    "nanotron": _Tool("nanotron", "nanotron"),
    "kohya": _Tool("sd-scripts", "images"),
    "diffusers": _Tool("diffusers", "images", "read_diffusers", "DIFFUSERS_MARKS"),
}
# As whom a file is read that is read as several: the tool whose keys the other's hold, too.
_WITHIN: Final = {"trainer": ("llamafactory",), "megatron": ("nemo",)}


def recipe(path: Path, kind: str | None = None, *, text: str | None = None) -> Recipe:
    """Return what a recipe says, by the names of options.

    ``kind``: the tool, one of ``TOOLS``, where the user names it; ``text``: what stands in the
    file, where that was read.

    Raises UsageError if the file cannot be read, no tool or several could have written it, or it
    describes a training that has no description here.
    """
    if kind is not None and kind not in TOOLS:
        raise UsageError(f"--as {kind[:40]!r} is unknown", hint=f"one of: {', '.join(TOOLS)}")
    text = read_text(path) if text is None else text
    tables = documents(path, text)
    if not tables:
        return _started(path, starts(text))
    for table in tables:
        if (sent := submitted(table)) is not None:
            return _started(path, starts(*sent))
    table = tables[0]
    config = Config(path=path, table=table)
    if path.suffix == ".toml" and kind != "torchtitan":
        _without_sections(config)
    kind = kind or _recognised(config)
    return _read(config, kind)


def _read(config: Config, kind: str) -> Recipe:
    tool = TOOLS[kind]
    reader: Callable[[Config], dict[str, Any]] = getattr(_module(tool), tool.reader)
    return recipe_of(config, tool.name, reader(config))


def _without_sections(config: Config) -> None:
    """Name the keys of sd-scripts' TOML without its sections, which it leaves out of account."""
    short = {name.rpartition(".")[2]: value for name, value in config.keys.items()}
    if "pretrained_model_name_or_path" in short:
        config.keys = short


def _module(tool: _Tool) -> Any:
    return importlib.import_module(f"advisor.recipes.{tool.home}")


def _recognised(config: Config) -> str:
    """Return whose keys a file has."""
    found = [
        kind
        for kind, tool in TOOLS.items()
        if any(all(name in config.keys for name in marks)
               for marks in getattr(_module(tool), tool.marks))
    ]  # fmt: skip
    found = [one for one in found if not set(_WITHIN.get(one, ())) & set(found)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{config.path} could be a recipe of {' or '.join(TOOLS[one].name for one in found)}",
            hint=f"say whose it is: --as {found[0]}",
        )
    raise UsageError(
        f"cannot tell whose recipe {config.path} is", hint=f"say it: --as {'|'.join(TOOLS)}"
    )


def _beside(path: Path, named: str) -> Path | None:
    """Return the file that a command names: from its folder, one mounted from it, or below it."""
    folder, name = path.parent, Path(named).name
    places = (folder / named, folder / named.lstrip("/"), folder / name)
    found = [*places, *sorted(folder.glob(f"*/{name}"))[:1]]
    return next((one for one in found if one.is_file()), None)


def _started(path: Path, found: list[Start]) -> Recipe:
    """Return the recipe of the training that a file starts."""
    known = [one for one in found if one.tool in TOOLS]
    if not known:
        others = {one.tool for one in found}
        what = f"only {', '.join(sorted(others))}" if others else "no training that is known here"
        raise UsageError(
            f"{path} starts {what}", hint="give the recipe itself, or describe the job: --model"
        )
    if len({(one.tool, one.file, repr(one.arguments)) for one in known}) > 1:
        names = ", ".join(one.file or TOOLS[one.tool].name for one in known[:4])
        raise UsageError(f"{path} starts several trainings: {names}", hint="give one's recipe")
    start = known[-1]
    config = Config(path=path, table=dict(start.arguments), ranks=start.ranks)
    if start.file is not None:
        file = _beside(path, start.file)
        if file is None:
            raise UsageError(
                f"{path} starts {TOOLS[start.tool].name} with {start.file}, which is not here",
                hint="give that file, or put it beside this one",
            )
        config = Config(path=file, table=documents(file, read_text(file))[0], ranks=start.ranks)
        config.keys |= start.arguments
    if (accelerate := config.keys.pop("accelerate_config", None)) is not None:
        from advisor.recipes.hugging_face import with_accelerate

        with_accelerate(config, str(accelerate))
    return _read(config, start.tool)
