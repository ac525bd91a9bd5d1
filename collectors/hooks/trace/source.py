"""The length of the whole job, read from the frames under a step: never guessed, always sourced.

From the step outwards every enclosing loop is looked at: a framework's loop says it itself (see
``frameworks``); a plain ``for`` or ``while`` is evaluated from its source and its frame's
variables, as far as that needs no call with effects. Loops multiply; how many turns of the
innermost loop make one step is what the recording shows later.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys

from .. import format as fmt
from .expressions import Exits, dotted, is_count, value_of, value_of_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any


# The job's length by the training frameworks' own loops.


def state(frame: FrameType) -> dict[str, Any] | None:
    """Return the framework's word if ``frame`` is its training loop, else None."""
    name = frame.f_code.co_name
    module = str(frame.f_globals.get("__name__", ""))
    for packages, function, read in _LOOPS:
        if module.startswith(packages) and name == function:
            found = read(frame.f_locals)
            named = zip(("steps", "epochs", "source"), found or ())
            return dict(named, confidence="certain") if found else None
    return None


def _lightning(variables: dict[str, Any]) -> Any:
    loop: Any = variables.get("self")
    if type(loop).__name__ != "_FitLoop":
        return None
    steps = loop.trainer.estimated_stepping_batches
    if not isinstance(steps, int):  # infinite: no bound was given
        return None
    epochs = loop.max_epochs if (loop.max_epochs or -1) > 0 else None
    return steps, epochs, "Lightning trainer.estimated_stepping_batches"


def _hugging_face(variables: dict[str, Any]) -> Any:
    steps = variables.get("max_steps")
    if not isinstance(steps, int) or steps <= 0:
        steps = getattr(getattr(variables.get("self"), "state", None), "max_steps", None)
    if not isinstance(steps, int) or steps <= 0:
        return None
    return steps, variables.get("num_train_epochs"), "Hugging Face Trainer state.max_steps"


def _keras(variables: dict[str, Any]) -> Any:
    epochs = variables.get("epochs")
    iterator = variables.get("epoch_iterator")
    per_epoch = variables.get("steps_per_epoch") or getattr(iterator, "num_batches", None)
    if not isinstance(epochs, int) or not per_epoch:
        return None
    return epochs * int(per_epoch), epochs, "Keras fit(epochs) x batches"


# Packages, the function that loops, and how (steps, epochs, source) are read from its variables.
_LOOPS: tuple[tuple[Any, str, Any], ...] = (
    (("lightning", "pytorch_lightning"), "advance", _lightning),
    ("transformers", "_inner_training_loop", _hugging_face),
    ("keras", "fit", _keras),
)


# The turns of a loop, by its source and the variables around it.


def _called(node: Any) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)


def turns_of_while(loop: Any, owner: Any, scope: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (turns, counter) of ``while counter < bound`` where the loop itself counts.

    (None, None) for any other condition: what somebody else counts is a bound, see ``bounds``.
    """
    tests = loop.test.values if isinstance(loop.test, ast.BoolOp) else [loop.test]
    if isinstance(loop.test, ast.BoolOp) and not isinstance(loop.test.op, ast.And):
        return None, None
    for test in tests:
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        left, right = value_of(test.left, scope), value_of(test.comparators[0], scope)
        extra = {ast.Lt: 0, ast.NotEq: 0, ast.LtE: 1}.get(type(test.ops[0]))
        stride = _stride(loop, dotted(test.left))
        if extra is not None and stride and is_count(left) and is_count(right):
            start = _start(owner, dotted(test.left))
            return -((start - right - extra) // stride), (left - start) // stride
    return None, None


def _stride(loop: Any, name: str) -> int | None:
    """Return what every turn of ``loop`` itself adds to a counter."""
    pending, found = list(loop.body), None
    while pending:
        node = pending.pop()
        if isinstance(node, ast.AugAssign) and dotted(node.target) == name:
            added = getattr(node.value, "value", None)
            found = added if isinstance(node.op, ast.Add) and is_count(added) else None
        elif isinstance(node, ast.Assign) and any(dotted(one) == name for one in node.targets):
            added = getattr(getattr(node.value, "right", None), "value", None)
            is_sum = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
            found = added if is_sum and is_count(added) else None
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
            pending += node.body
    return found or None


def _start(owner: Any, name: str) -> int:
    """Return the constant that a counter begins with, 0 where none is assigned."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and any(dotted(one) == name for one in node.targets):
            value = getattr(node.value, "value", None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return 0


# Calls that hand on their first argument's elements one by one.
_TRANSPARENT = frozenset(["enumerate", "tqdm", "iter", "list", "reversed", "sorted", "track",
                          "prefetch", "progress_bar"])  # fmt: skip


def is_endless(node: Any) -> bool:
    """Return whether iterating over this expression never ends: ``count()``, ``cycle(loader)``."""
    if not isinstance(node, ast.Call):
        return False
    if _called(node) == "enumerate" and node.args:
        return is_endless(node.args[0])
    return _called(node) in ("count", "cycle", "repeat")


def turns_of_for(node: Any, scope: dict[str, Any]) -> tuple[int | None, bool]:
    """Return how often a ``for`` over this expression turns, and whether it is over a loader."""
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in ("range", "trange"):
            bounds = [value_of(argument, scope) for argument in node.args]
            is_known = bool(bounds) and all(isinstance(bound, int) for bound in bounds)
            return (len(range(*bounds)) if is_known else None), False
        if name == "zip":
            inner = [turns_of_for(argument, scope) for argument in node.args]
            known = [turns for turns, _ in inner if turns is not None]
            return (min(known) if known else None), any(is_loader for _, is_loader in inner)
        if name == "islice" and len(node.args) == 2:
            bound = value_of(node.args[1], scope)
            return (bound if isinstance(bound, int) else None), False
        if name == "cycle" and node.args:
            return None, turns_of_for(node.args[0], scope)[1]
        if name in _TRANSPARENT and node.args:
            return turns_of_for(node.args[0], scope)
        return None, False
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return len(node.elts), False
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return None, False
    value = value_of(node, scope)
    if value is None:
        return None, False
    is_loader = any("DataLoader" in base.__name__ for base in type(value).__mro__)
    is_sized = is_loader or isinstance(value, (list, tuple, range, dict, str))
    if not is_sized and hasattr(value, "iterable"):  # a progress bar around something
        return _length(value.iterable), "DataLoader" in type(value.iterable).__name__
    return (_length(value) if is_sized or hasattr(value, "__len__") else None), is_loader


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # somebody's __len__ may raise anything
        return None


_HOOKS = os.path.dirname(os.path.abspath(fmt.__file__)) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__))
# Packages that loop around a step without repeating it (over groups of parameters, over hooks), or
# that say the length themselves: see ``frameworks``.
_NOT_COUNTED = frozenset([
    "accelerate", "apex", "bitsandbytes", "deepspeed", "keras", "lightning", "pluggy",
    "pytorch_lightning", "_pytest", "torch", "transformers",
])  # fmt: skip
_MAX_FRAMES = 60
_CO_OPTIMIZED = 1  # a function's: its variables are no dict, see inspect.CO_OPTIMIZED


def find(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return what the frames say, best first.

    Each candidate has ``source`` and ``confidence`` and either ``steps`` (framework state) or
    ``loops``, innermost first: ``turns`` (None: unknown), ``text``, ``where``, ``is_loader``
    (turns are batches), ``variable`` (value of the loop's counter now, where there is one),
    ``bound`` (where it breaks off), ``may_end`` (it may break off elsewhere; see ``bounds``) and
    ``is_endless`` (it would not end by itself).
    """
    candidates = []
    loops: list[dict[str, Any]] = []
    inside: list[dict[str, Any]] = []  # loops of a package that the script calls
    schedules: list[dict[str, Any]] = []
    depth = 0
    while frame is not None and depth < _MAX_FRAMES:
        if not is_ours(frame.f_code.co_filename):
            stated = state(frame)
            if stated is not None:
                candidates.append(stated)
            if is_library(frame.f_code.co_filename):
                inside += _loops(frame) if _is_counted(frame) else []
            else:
                around = _loops(frame)
                if inside or around:
                    _begun_anew_by_calls(loops)
                loops += inside + around
                inside = []
                schedules += _schedules(frame)
        _forget(frame)
        frame = frame.f_back
        depth += 1
    for loop in loops:
        if loop["bound"] is not None and loop["bound"]["reset"] == "call":
            loop["bound"]["reset"] = ""  # called once: it counts through the job
    if loops:
        source = "%s, %s" % (" in ".join(loop["text"] for loop in loops), loops[-1]["where"])
        candidates.append({"loops": loops, "confidence": "likely", "source": source})
    return candidates + schedules[:1]


def _forget(frame: FrameType) -> None:
    """Empty the copy of its variables that Python before 3.13 makes of a frame that is looked at.

    It would live as long as the frame: a batch and what was computed from it, all through the
    training. What the script itself holds (``locals()`` gives the same copy) stays.
    """
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & _CO_OPTIMIZED:
        return
    copied = frame.f_locals
    if sys.getrefcount(copied) <= 3:  # the frame's, this name's and the call's own
        copied.clear()


def _begun_anew_by_calls(loops: list[dict[str, Any]]) -> None:
    """Note that the functions of these loops are called again and again."""
    for loop in loops:
        if loop["bound"] is not None and loop["bound"]["reset"] == "call":
            loop["bound"]["reset"] = "loop"


def is_ours(filename: str) -> bool:
    """Whether a file is the hooks' own."""
    return os.path.abspath(filename).startswith(_HOOKS)


def is_library(filename: str) -> bool:
    """Whether a file is an installed package's or the standard library's, or no file."""
    if "site-packages" in filename or "dist-packages" in filename or filename.startswith("<"):
        return True
    return os.path.dirname(os.path.abspath(filename)).startswith(_STANDARD)


def _is_counted(frame: FrameType) -> bool:
    """Return whether a package's loop may repeat steps: a trainer's, not an optimizer's."""
    filename = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    is_installed = "site-packages" in filename or "dist-packages" in filename
    return is_installed and package not in _NOT_COUNTED


def _loops(frame: FrameType) -> list[dict[str, Any]]:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    if not source:
        return []
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    around = []
    owner = _owner_of(tree, frame)
    for node in _body_of(owner):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            body = node.body
            last = getattr(body[-1], "end_lineno", None) or node.lineno
            if body[0].lineno <= frame.f_lineno <= last:
                around.append(node)
    around.sort(key=lambda node: node.lineno, reverse=True)
    return [_loop(node, owner, frame, source) for node in around]


def _owner_of(tree: ast.AST, frame: FrameType) -> ast.AST:
    owner = tree
    first = frame.f_code.co_firstlineno
    if frame.f_code.co_name != "<module>":
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                starts = [node.lineno] + [d.lineno for d in node.decorator_list]
                if node.name == frame.f_code.co_name and first in starts:
                    owner = node
    return owner


def _body_of(owner: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function or module, not of inner ones."""
    found = []
    pending = list(ast.iter_child_nodes(owner))
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


_TEXT = re.compile(r"([\"'])((?:\\.|(?!\1).)*)\1", re.DOTALL)


def without_texts(source: str, *, keeps: str = "") -> str:
    r"""Return source text with the texts in it left out: a key may stand in one.

    >>> without_texts("login(key='x', on=\"cpu\")", keeps="cpu")
    'login(key=\'...\', on="cpu")'
    """
    return _TEXT.sub(
        lambda found: found[0] if found[2] == keeps else found[1] + "..." + found[1], source
    )


def _loop(node: Any, owner: Any, frame: FrameType, source: str) -> dict[str, Any]:
    where = "%s:%d" % (os.path.basename(frame.f_code.co_filename), node.lineno)
    scope = dict(frame.f_globals)
    scope.update(frame.f_locals)
    exits = Exits(node, owner, scope, frame.f_lineno)
    if isinstance(node, ast.While):
        turns, variable = turns_of_while(node, owner, scope)
        text, is_loader = ast.get_source_segment(source, node.test) or "while", False
    else:
        turns, is_loader = turns_of_for(node.iter, scope)
        variable = value_of_counter(node, scope)
        text = ast.get_source_segment(source, node.iter) or "for"
    if exits.bound is not None and isinstance(owner, ast.Module):
        exits.bound["reset"] = exits.bound["reset"].replace("call", "")
    return {
        "turns": turns,
        "bound": exits.bound,
        "may_end": exits.may_end,
        "is_endless": isinstance(node, ast.While) or is_endless(node.iter),
        "text": " ".join(without_texts(text).split())[:80],
        "target": dotted(getattr(node, "target", None)),
        "where": where,
        "is_loader": is_loader,
        "variable": variable,
    }


def _schedules(frame: FrameType) -> list[dict[str, Any]]:
    """Return what a learning-rate scheduler among the frame's variables was made for."""
    found = []
    for value in list(frame.f_locals.values()):
        if any(base.__name__ in ("LRScheduler", "_LRScheduler") for base in type(value).__mro__):
            total = getattr(value, "total_steps", None)
            if isinstance(total, int) and total > 0:
                kind = type(value).__name__
                found.append(
                    {"steps": total, "confidence": "weak", "source": kind + ".total_steps"}
                )
    return found


# The line of the user's script that calls into a framework, and the loops around it.


def of_user(frame: FrameType | None) -> str:
    """Return ``file:line`` of the innermost frame that is neither a library's nor ours."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if not is_library(filename) and not is_ours(filename):
            return "%s:%d" % (os.path.basename(filename), frame.f_lineno)
        frame = frame.f_back
    return ""


def user_loops(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the loops of the user's code around a call, innermost first; see ``total_work``.

    A library that calls the user's code back in a loop of its own (an optimisation of
    hyper-parameters) is a loop whose turns nobody knows.
    """
    loops: list[dict[str, Any]] = []
    for candidate in find(frame):
        loops = loops or candidate.get("loops", [])
    return loops + _library_loops(frame)


def _library_loops(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the loops of libraries that stand outside of the user's own frames."""
    has_seen_user = False
    while frame is not None:
        filename = frame.f_code.co_filename
        is_of_others = is_library(filename)
        if is_of_others and has_seen_user and not filename.startswith("<"):
            found = [dict(loop, turns=None) for loop in _loops(frame)]
            if found:
                return found[:1]
        has_seen_user |= not is_of_others and not is_ours(filename)
        frame = frame.f_back
    return []


# Devices that the script is told of: by arguments, by the environment, by its own source.


# The only variables whose values are kept: they hide accelerators, or choose without them.
_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ACCELERATE_USE_CPU",
                "JAX_PLATFORMS", "JAX_PLATFORM_NAME")  # fmt: skip
_LONGEST_VALUE = 40

_MENTIONS = ("cuda", "device", "accelerator")
_SPREADS = frozenset([
    "Accelerator", "DataParallel", "DistributedDataParallel", "FSDP", "Fabric",
    "FullyShardedDataParallel", "LightningModule", "Trainer", "deepspeed", "fully_shard",
    "init_process_group",
])  # fmt: skip
# Keyword arguments that keep a framework's trainer on the CPU.
_KEPT = {"accelerator": "cpu", "use_cpu": True, "no_cuda": True, "cpu": True}
_MODELS = ("model", "net", "module")

_MOST_FILES = 40
_LARGEST_FILE = 300_000
_MOST_FIXED = 8


# Packages whose loop stands over a step, and the training stack that they are; the first of these
# that is met: what wraps another comes before it.
_STACKS = (
    ("torchtitan", "torchtitan"), ("nemo", "nemo"), ("megatron.bridge", "nemo"),
    ("megatron", "megatron-core"), ("composer", "llm-foundry"),
    ("transformers.trainer", "trainer"), ("deepspeed", "deepspeed"),
)  # fmt: skip


def stack_over(frame: FrameType | None) -> str:
    """Return the training stack whose loop a step runs in, by its packages; empty for none."""
    seen = set()
    while frame is not None:
        seen.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    for package, stack in _STACKS:
        if any(name == package or name.startswith(package + ".") for name in seen):
            return stack
    return ""


def facts(switches: dict[str, Any], frame: FrameType | None = None) -> dict[str, Any]:
    """Return what is told: ``switches``, ``environment`` and what the sources say.

    ``switches`` are the parsed arguments about devices, ``frame`` is one within a step.
    Of the sources: ``fixed`` (places that fix the CPU), ``mentions`` (devices are named at all)
    and ``spreads`` (names of what trains on several).
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
    mentions = False
    files = 0
    for path in _own_files():
        source = DeviceMentions(path)
        files += 1
        fixed += source.fixed
        spreads |= source.spreads
        mentions |= source.mentions
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
    """

    def __init__(self, path: str) -> None:
        self.fixed: list[dict[str, str]] = []
        self.spreads: set[str] = set()
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
            if is_others and word in _SPREADS:
                self.spreads.add(word)
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
