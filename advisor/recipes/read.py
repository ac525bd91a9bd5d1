"""The one way into a recipe: which tool wrote the file, and what its reader makes of it."""

from __future__ import annotations

import glob
import importlib
import os
import shlex
from pathlib import Path
from typing import Any, Final, NoReturn

from advisor.errors import UsageError
from advisor.recipes.facts import Config, Recipe, recipe_of
from advisor.recipes.launch import Start, starts
from advisor.recipes.shell import commands
from advisor.recipes.submissions import submitted
from advisor.recipes.tables import shipped, tools
from advisor.recipes.text import documents, read_text, table_in

# As whom a file is read that is read as several: the tool whose keys the other's hold, too.
_WITHIN: Final = {"trainer": "llamafactory"}


def recipe(
    path: Path, kind: str | None = None, *, text: str | None = None, devices: int | None = None
) -> Recipe:  # fmt: skip
    """Return what a recipe says, by the names of options.

    ``kind``: the tool, by its key in the tables, where the user names it; ``text``: what stands in
    the file, where that was read; ``devices``: that it is started on, where nothing says so.

    Raises UsageError if the file cannot be read, no tool or several could have written it, or it
    describes a training that has no description here.
    """
    if kind is not None and kind not in tools():
        raise UsageError(f"--as {kind[:40]!r} is unknown", hint=f"one of: {', '.join(tools())}")
    text = read_text(path) if text is None else text
    tables = documents(path, text)
    sent = next(filter(None, map(submitted, tables)), None)
    if sent or not tables:
        script = sent or (text, None, None)
        return _started(path, starts(*script) or _unknown(path, script[0]), devices)
    config = Config(path=path, table=tables[0], devices=devices)
    short = {name.rpartition(".")[2]: value for name, value in config.keys.items()}
    if path.suffix == ".toml" and "pretrained_model_name_or_path" in short:
        config.keys = short  # sd-scripts leaves the sections of its TOML out of account
    return _read(config, kind or _recognised(config))


def _read(config: Config, kind: str) -> Recipe:
    if isinstance(missing := config.table.get("defaults"), list) and config.keys.pop(
        "defaults", 0
    ):
        said = ", ".join(map(str, missing))[:80]
        config.asked[f"the defaults {said}, which are not here"] = "put them beside it"
    tool = tools()[kind]
    reader: Any = importlib.import_module(f"advisor.recipes.{tool.get('home', kind)}")
    facts = getattr(reader, tool.get("reader", "read"))(config, config.facts(tool["facts"]))
    return recipe_of(config, kind, tool["name"], facts)


def _recognised(config: Config) -> str:
    """Return whose keys a file has."""
    keys = config.keys.keys()
    found = [
        kind for kind, tool in tools().items() if any(keys >= {*one} for one in tool["marks"])
    ]
    found = [one for one in found if _WITHIN.get(one) not in found]
    if len(found) == 1:
        return found[0]
    if found:
        names = " or ".join(tools()[one]["name"] for one in found)
        raise UsageError(
            f"{config.path} could be a recipe of {names}", hint=f"say whose it is: --as {found[0]}"
        )
    raise UsageError(
        f"cannot tell whose recipe {config.path} is", hint=f"say it: --as {'|'.join(tools())}"
    )


def _beside(path: Path, named: str) -> Path | None:
    """Return the file that a command names: from its folder, one mounted from it, or below it."""
    named = named if Path(named).suffix else f"{named}.yaml"  # Hydra's --config-name
    folder, name = path.parent, Path(named).name
    places = (folder / named, folder / named.lstrip("/"), folder / name)
    found = [*places, *sorted(folder.glob(f"*/{glob.escape(name)}"))[:1]]
    return next((one for one in found if os.path.isfile(one)), None)


def _unknown(path: Path, script: str) -> NoReturn:
    """Refuse a file that starts no known tool; the hint is the command that records a step."""
    found = (
        shlex.join([str(path.parent / one), *words[place:]])
        for words in commands(script)[0]
        for place, one in enumerate(words, start=1)
        if one.endswith(".py") and (path.parent / one).is_file()
    )
    is_shell = path.suffix not in (".yaml", ".yml")
    what = next(found, f"-- bash {shlex.quote(str(path))}" if is_shell else "SCRIPT")
    raise UsageError(
        f"{path} starts no training that is known here",
        hint=f"record a step of it: advisor profile {what}; or describe the job: --model",
    )


def _started(path: Path, found: list[Start], devices: int | None) -> Recipe:
    """Return the recipe of the training that a file starts."""
    if len({(one.tool, one.file, repr(one.arguments)) for one in found}) > 1:
        names = ", ".join(one.file or one.tool for one in found[:4])
        raise UsageError(f"{path} starts several trainings: {names}", hint="give one's recipe")
    start = found[-1]
    started: Any = {"ranks": start.ranks, "devices": devices, "rounds": start.rounds}
    config = Config(path=path, table=start.arguments, **started)
    if start.file is not None:
        file, known = _beside(path, start.file), shipped(start.tool).get(start.file)
        if file is None and known is None:
            raise UsageError(
                f"{path} starts {start.tool} with {start.file}, which is not here",
                hint="give that file, or put it beside this one",
            )
        table = dict(known or {}) if file is None else table_in(file, start.arguments)
        config = Config(path=file or path, table=table, **started)
        config.keys |= start.arguments
    if (accelerate := config.keys.pop("accelerate_config", None)) is not None:
        from advisor.recipes.hugging_face import with_accelerate

        with_accelerate(config, str(accelerate))
    return _read(config, start.tool)
