"""What the script is told: of devices by arguments and the environment, of more by its source."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .expressions import dotted
from .frames import without_texts
from .libraries import GIVEN, SPREADS, stack_over, word_of

# The only variables whose values are kept: they hide accelerators, or choose without them.
_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ACCELERATE_USE_CPU",
                "JAX_PLATFORMS", "JAX_PLATFORM_NAME")  # fmt: skip
_LONGEST_VALUE = 40

_MENTIONS = ("cuda", "device", "accelerator")
# Keyword arguments that keep a framework's trainer on the CPU.
_KEPT = {"accelerator": "cpu", "use_cpu": True, "no_cuda": True, "cpu": True}
_MODELS = ("model", "net", "module")

_MOST_FILES = 40
_LARGEST_FILE = 300_000
_MOST_FIXED = 8


def facts(switches: dict[str, Any], frame: FrameType | None = None) -> dict[str, Any]:
    """Return what is told: ``switches``, ``environment`` and what the sources say.

    ``switches`` are the parsed arguments about devices, ``frame`` is one within a step.
    Of the sources: ``fixed`` (places that fix the CPU), ``mentions`` (devices are named at all),
    ``spreads`` (names of what trains on several) and ``words`` (of the loss and the update).
    """
    told: dict[str, Any] = {
        "switches": switches,
        "stack": stack_over(frame),
        "environment": {
            k: os.environ[k][:_LONGEST_VALUE] for k in _ENVIRONMENT if k in os.environ
        },
    }
    fixed: list[dict[str, str]] = []
    spreads: set[str] = set()
    words: dict[str, str] = {}
    mentions = False
    files = 0
    for path in _own_files():
        source = DeviceMentions(path)
        files += 1
        fixed += source.fixed
        spreads |= source.spreads
        mentions |= source.mentions
        words.update(source.words)
    told.update(words=words)
    told.update(fixed=fixed[:_MOST_FIXED], spreads=sorted(spreads), mentions=mentions, files=files)
    return told


def _own_files() -> Iterator[str]:
    """Yield the script's file and those of its own modules, which lie beside or below it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return
    main = os.path.abspath(main)
    folder = os.path.dirname(main) + os.sep
    paths = [main]
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and "-packages" not in path:
            paths.append(os.path.abspath(path))
    own = [path for path in dict.fromkeys(paths) if path.startswith(folder)]
    yield from own[:_MOST_FILES]


class DeviceMentions:
    """What one file says of devices.

    Attributes
    ----------
    fixed : list of dict
        ``where`` and ``text`` of every place that fixes the CPU, whatever there is.
    words : dict of str to str
        How the loss is computed and when the optimizer updates, where that is named.
    """

    def __init__(self, path: str) -> None:
        self.fixed: list[dict[str, str]] = []
        self.spreads: set[str] = set()
        self.words: dict[str, str] = {}
        self.mentions = False
        self._name = os.path.basename(path)
        self._free: set[str] = set()  # variables that may hold an accelerator as well
        self._places: list[tuple[str, Any]] = []
        try:
            if os.path.getsize(path) > _LARGEST_FILE:
                return
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return
        self._visit(tree, is_certain=True)
        for variable, node in self._places:
            if variable not in self._free or not variable:
                segment = ast.get_source_segment(text, node) or ""
                where = "%s:%d" % (self._name, node.lineno)
                text = " ".join(without_texts(segment, keeps="cpu").split())
                self.fixed.append({"where": where, "text": text[:60]})

    def _visit(self, root: Any, *, is_certain: bool) -> None:
        """Look at every node; ``is_certain`` holds outside of conditions."""
        pending = [(root, is_certain)]
        while pending:
            node, certain = pending.pop()
            self._look(node, certain)
            if isinstance(node, (ast.If, ast.IfExp, ast.Try)):
                certain = _is_main_guard(node) and certain
            pending += [(child, certain) for child in ast.iter_child_nodes(node)]

    def _look(self, node: Any, certain: bool) -> None:
        is_others = isinstance(node, (ast.alias, ast.Attribute))  # not a class of the script's own
        for word in _words(node):
            self.mentions |= any(part in word.lower() for part in _MENTIONS)
            if is_others and word in SPREADS:
                self.spreads.add(word)
            said = word_of(word) if is_others else None
            if said:
                self.words.setdefault(*said)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in map(dotted, targets):
                if "device" in name.lower() and _is_cpu(node.value) and certain:
                    self._places.append((name, node))
                elif not _is_cpu(node.value):
                    self._free.add(name)
        elif isinstance(node, ast.Call) and certain:
            self._look_at_call(node)

    def _look_at_call(self, node: Any) -> None:
        for keyword in node.keywords:
            given = str(getattr(keyword.value, "value", "")).lower()
            said = GIVEN.get((keyword.arg or "", given))
            if said:
                self.words[said[0]] = said[1]
            wanted = _KEPT.get(keyword.arg or "")
            value = getattr(keyword.value, "value", None)
            if wanted is not None and type(value) is type(wanted) and value == wanted:
                self._places.append(("", node))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and node.args:
            owner = dotted(node.func.value).rpartition(".")[2].lower()
            if any(part in owner for part in _MODELS) and _is_cpu(node.args[0]):
                self._places.append(("", node))


def _is_main_guard(node: Any) -> bool:
    """Return whether this is ``if __name__ == "__main__"``, or a Try, whose body runs anyhow."""
    if isinstance(node, ast.Try):
        return True
    left = getattr(node.test, "left", None)
    return isinstance(left, ast.Name) and left.id == "__name__"


def _is_cpu(node: Any) -> bool:
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "device":
        return bool(node.args) and _is_cpu(node.args[0])
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _words(node: Any) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield node.name.rpartition(".")[2]
        yield node.name.partition(".")[0]
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value[:200]
