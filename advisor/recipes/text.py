"""The text of a recipe as plain values: YAML, TOML or JSON, all with bounds.

Hydra's ``defaults`` are read where they lie beside the recipe.
``${NAME}`` in a value is what a key of that dotted name says (OmegaConf's way), and
``${oc.env:NAME,default}`` the default; what cannot be resolved stays as it is written, and whoever
reads the key asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.errors import UsageError

MOST_BYTES: Final = 256 << 10  # of a recipe; the largest that were read have 40 KB
_MOST_VALUES: Final = 20_000  # an alias that repeats itself makes many of few characters
_MOST_DOCUMENTS: Final = 50
_REFERENCE: Final = re.compile(r"\$\{([^${}]+)\}")
UNRESOLVED: Final = re.compile(r"\$\{|\$[A-Za-z_(]|\?\?\?")
# YAML 1.1 reads 2e-5 as a text; every tool here reads it as a number.
_DECIMAL: Final = re.compile(r"[-+]?(\d{1,18}\.?\d*|\.\d+)([eE][-+]?\d{1,3})?")


def read_text(path: Path) -> str:
    """Return the text of a recipe.

    Raises UsageError if it cannot be read, or is larger than a recipe.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES >> 10} KiB")  # noqa: TRY301
        return bounded.read_text(path, most_bytes=MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the recipe {path}: {error}",
            hint="give the file that the tool is given; a recorded run is --run NAME",
        ) from error


def documents(
    path: Path, text: str, chosen: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the tables of a recipe; none where it is a script.

    ``chosen``: which of a group's files a command chooses (Hydra's ``group=option``). Of the
    defaults of Hydra that are not beside the recipe, ``defaults`` keeps the names.

    Raises UsageError if it is not what its name says, has a key twice, or is no table.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        return []
    try:
        found = parse(text)
        for one in found:
            if not isinstance(one, dict):
                raise TypeError(f"it holds a {type(one).__name__} and no table")  # noqa: TRY301
            if _is_large(one):
                raise ValueError(f"it holds more than {_MOST_VALUES:,} values")  # noqa: TRY301
        found = [_composed(path, one, chosen or {}) for one in found]
    except (ValueError, TypeError, RecursionError) as error:
        line, form = (
            " ".join(str(error).split())[:200],
            path.suffix[1:].upper().replace("YML", "YAML"),
        )
        raise UsageError(
            f"cannot read the recipe {path}: {line}", hint=f"correct the {form}"
        ) from error
    return [_resolved(one) for one in found]


def table_in(path: Path, chosen: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the first table of a file that another names; ``chosen``: as of ``documents``.

    Raises UsageError if it has none, or cannot be read.
    """
    found = documents(path, read_text(path), chosen)
    if not found:
        raise UsageError(f"{path} holds no table", hint="give a YAML, JSON or TOML file")
    return found[0]


def _composed(path: Path, table: dict[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the defaults of Hydra that it lists, which its own values overrule.

    A default's file has its group's name, and its values stand below that, or below a package that
    is named. (Hydra 1.3, "The Defaults List"; a list without ``_self_`` ends with it.)
    """
    defaults = table.get("defaults")
    if path.suffix not in (".yaml", ".yml") or not isinstance(defaults, list):
        return table
    own = {name: value for name, value in table.items() if name not in ("defaults", "hydra")}
    found: dict[str, Any] = {}
    missing: list[str] = []
    for one in [*defaults, *(() if "_self_" in defaults else ("_self_",))]:
        said, option = next(iter(one.items())) if isinstance(one, dict) and one else (one, None)
        group, _, package = str(said).split(" ")[-1].partition("@")
        if not isinstance(one, dict):
            group, _, option = group.rpartition("/")
        option = chosen.get(group or " ", option)
        if option == "_self_":
            found = _merged(found, own)
        elif option is not None and not group.startswith("hydra/"):
            file = path.parent / group.lstrip("/") / f"{str(option).removesuffix('.yaml')}.yaml"
            if file == path or not file.is_file():
                missing.append(f"{group}/{option}".lstrip("/"))
                continue
            text = read_text(file)
            is_global = package == "_global_" or re.search(r"^# *@package _global_", text, re.M)
            inner = next(iter(documents(file, text, chosen)), {})
            missing += inner.pop("defaults", [])
            for name in [] if is_global else reversed((package or group).split("/")):
                inner = {name: inner} if name else inner
            found = _merged(found, inner)
    return found | ({"defaults": missing} if missing else {})


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with what stands in ``over`` before what stands in ``under``."""
    both = {
        name: _merged(under[name], value)
        for name, value in over.items()
        if isinstance(value, dict) and isinstance(under.get(name), dict)
    }
    return {**under, **over, **both}


def _yaml(text: str) -> list[Any]:
    import yaml

    class SingleKeyLoader(yaml.SafeLoader):
        """A loader that refuses a key given twice, which others would drop."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _once(str(key.value) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge")
            return super().construct_mapping(node, deep=deep)

    try:
        found = [one for one in yaml.load_all(text, SingleKeyLoader) if one is not None]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if len(found) > _MOST_DOCUMENTS:
        raise ValueError(f"it holds more than {_MOST_DOCUMENTS} documents")
    return found


def _json(text: str) -> list[Any]:
    def paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _once(name for name, _ in pairs)
        return dict(pairs)

    bounded.parse_json(text)
    return [json.loads(text, object_pairs_hook=paired)]


def _once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.add(name)


_PARSERS: Final[Mapping[str, Callable[[str], list[Any]]]] = {
    ".yaml": _yaml, ".yml": _yaml, ".json": _json,
    ".toml": lambda text: [bounded.parse_toml(text)],
}  # fmt: skip


def _is_large(value: Any) -> bool:
    """Whether there are too many values, aliases counted as often as they stand."""
    count, rest = 0, [value]
    while rest and count <= _MOST_VALUES:
        one = rest.pop()
        count += 1
        rest.extend(
            one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        )
    return count > _MOST_VALUES


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted names; lists stay values."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{above}{name}"
        found |= flat(value, f"{path}.") if isinstance(value, dict) and value else {path: value}
    return found


def _resolved(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the references that it can resolve itself."""
    known = flat(table)

    def value_of(match: re.Match[str]) -> str:
        name, _, default = match[1].removeprefix("oc.select:").partition(",")
        if name.startswith(("oc.env:", "env:")):
            return default.strip() or match[0]
        found = known.get(name.strip())
        found = default.strip() or None if found is None else found
        return match[0] if isinstance(found, dict | list) or found is None else str(found)

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): walk(one) for name, one in value.items()}
        if isinstance(value, list):
            return [walk(one) for one in value]
        if not isinstance(value, str):
            return value
        for _ in range(3):  # a reference to a reference
            value = _REFERENCE.sub(value_of, value)
        return plain(value)

    return {str(name): walk(value) for name, value in table.items()}


def plain(text: str) -> Any:
    """Return the number that a text is, as the tools read it; the text where it is none.

    >>> plain("2e-5"), plain("4"), plain("4B"), plain("${n}")
    (2e-05, 4, '4B', '${n}')
    """
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
