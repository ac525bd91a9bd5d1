"""A script that wants an accelerator where there is none, and what is done about it.

What it asks for is noted when it asks; whether that stopped it shows when it ends. A script that
goes on with the processor by itself is recorded, unless its first step cannot be waited for
(``first_step``). That one, and one that ends without a step, is run again as a rehearsal, in this
same process: by its own command, with nothing computed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys

from . import ending, first_step, lineage
from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import Session

# Parameters beyond this share of the machine's memory are not made: gradients and the optimizer's
# state come on top.
_SHARE = 0.4
# Errors that have nothing to do with an accelerator.
_OTHERS = (ImportError, SyntaxError, FileNotFoundError, KeyboardInterrupt)
_WEIGHTS = re.compile(r"\.(safetensors|bin|ckpt|pth)\b")  # how hubs name them
_USAGE = 2  # how argparse leaves
_SPEAKS = re.compile(r"\b(cuda|gpus?|nvidia|accelerators?)\b", re.IGNORECASE)


class Wants:
    """What the script of this process asked an accelerator for.

    Most scripts say it in so many words, outside of every condition: see ``said_by``. They are
    rehearsed from the start.

    Attributes
    ----------
    first : str
        The first thing that it cannot do without one, empty if none.
    asked, heard : str
        How the script, or a library of its, asked if there is one: that says nothing by itself.
    """

    def __init__(self, session: Session) -> None:
        self.first = self.asked = self.heard = ""
        self._session = session
        self._folder = os.getcwd()
        self._status: Any = 0
        self._error: Any = None
        self._bytes = 0
        self._most_bytes = _SHARE * _memory_bytes()

    @classmethod
    def begin_at_once(cls) -> None:
        """Make this process a rehearsal from its start, where its script leaves no doubt."""
        if _options().get("when") == "wanted" and not fmt.is_rehearsed():
            line = said_by(list(getattr(sys, "orig_argv", ())))
            if line:
                os.environ[fmt.REHEARSAL] = as_wanted(line)
                say(line)

    @classmethod
    def watch(cls, session: Session) -> Wants | None:
        """Begin to watch, where a rehearsal was not ruled out."""
        if _options().get("when") != "wanted" or not hasattr(sys, "orig_argv"):
            return None
        wants = cls(session)
        excepthook, leave = sys.excepthook, sys.exit

        def failed(kind: Any, error: Any, trace: Any) -> None:
            wants._error = error
            if wants.reason():
                wants.rehearse()
            excepthook(kind, error, trace)

        def left(status: Any = None) -> None:
            wants._status = status
            leave(status)

        sys.excepthook, sys.exit = failed, left  # type: ignore[assignment]
        session.on_exit.append(wants.ended)
        return wants

    def patch(self, torch: Any) -> None:
        """Note what is asked of ``torch.cuda``, if there is no device."""
        if torch.cuda.is_available():
            return
        cuda = torch.cuda
        for name in ("_lazy_init", "set_device"):
            setattr(cuda, name, self._noting(getattr(cuda, name), "torch.cuda is used"))
        for name in ("is_available", "device_count"):
            setattr(cuda, name, self._asking(getattr(cuda, name), "torch.cuda.%s()" % name))
        self._count_parameters(torch.nn.Parameter)
        first_step.FirstStep(
            _options(), self._names_cuda, lambda: self._session.steps, self._give_up
        ).watch(torch)

    def _names_cuda(self) -> bool:
        return bool(self.asked) or first_step.is_asked_by_trainer()

    def _give_up(self, why: str) -> None:
        self.first = why
        self.rehearse()

    def joins(self, backend: Any) -> None:
        """Note a process group that needs accelerators."""
        if "nccl" in str(backend).lower() and not self.first:
            self.first = "NCCL"

    def _noting(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except Exception:
                self.first = self.first or what
                raise

        return noting

    def _asking(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        from .trace.frames import is_library

        @functools.wraps(original)
        def asking(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            if not caller.startswith("<") and is_library(caller):
                self.heard = what
            else:
                self.asked = self.asked or what
            return original(*args, **kwargs)

        return asking

    def _count_parameters(self, parameter: Any) -> None:
        """Begin a rehearsal before parameters fill the memory."""
        original = parameter.__new__

        def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            if data is not None and data.device.type == "cpu":
                self._bytes += data.numel() * data.element_size()
                if self._bytes > self._most_bytes:
                    self.first = "the model does not fit into this machine's memory"
                    self.rehearse()
            return original(cls, data, requires_grad)

        parameter.__new__ = new

    def ended(self) -> None:
        """Rehearse the script that leaves now, if it needs that; else say what was done."""
        if self.reason():
            self.rehearse()
        elif self._names_cuda() and self._session.steps:
            sys.stderr.write(
                "[advisor] the script asks for CUDA and is quick on this processor: recorded; "
                "--rehearse runs it as on a GPU\n"
            )

    def reason(self) -> str:
        """Return why this script is to be rehearsed; empty where it is not."""
        session = self._session
        if session.steps or session.is_released:
            return ""
        if self._lacks_weights():
            return self.first or self.asked or "it moves to CUDA" * _speaks_of_cuda()
        if isinstance(self._error, _OTHERS):
            return ""
        if self.first:
            return self.first
        # A library that asked may have raised for that: then it says so.
        if self.heard and _SPEAKS.search(str(self._error or "")):
            return self.heard
        has_failed = self._error is not None or self._status not in (0, None, _USAGE)
        return self.asked if has_failed else ""

    def _lacks_weights(self) -> bool:
        """Whether it ended for want of what a rehearsal does without: weights, or their host."""
        error = self._error
        if error is None:
            return False
        is_unreached = bool(self.asked) and ending.cause_of(error)[0] == "network"
        return is_unreached or _WEIGHTS.search(str(error)) is not None

    def rehearse(self) -> None:
        """Run the command again as a rehearsal; does not return, unless that is impossible."""
        why = self.reason() or self.first
        environment = dict(os.environ)
        environment[fmt.REHEARSAL] = as_wanted(why)
        environment.pop(lineage.TRAINER, None)
        say(why)
        for child in getattr(sys.modules.get("multiprocessing"), "active_children", list)():
            child.terminate()  # a loader's workers would wait for this process
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.chdir(self._folder)
            self._session.writer.close()
            os.execve(sys.executable, list(sys.orig_argv), environment)
        except OSError as error:
            self._session.failed("rehearsal", error)


def _speaks_of_cuda() -> bool:
    """Whether the script itself has the word."""
    try:
        with open(getattr(sys.modules.get("__main__"), "__file__", "") or "", "rb") as file:
            return b"cuda" in file.read()
    except OSError:
        return False


def said_by(words: list[str]) -> str:
    """Return the line in which a script uses CUDA whatever happens; empty where none does.

    ``words``: the command. A script that asks whether there is a device decides for itself.
    """
    path = next((word for word in words[1:] if word.endswith(".py")), _file_of_module(words))
    if not path or any(map(os.path.exists, ("/dev/nvidia0", "/dev/kfd"))):
        return ""
    import ast

    try:
        with open(path, "rb") as file:
            source = file.read()
        if b"is_available" in source or b"device_count" in source or b"cuda" not in source:
            return ""
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    line = _unconditional(ast, tree)
    return "%s:%d" % (os.path.basename(path), line) if line else ""


def _file_of_module(words: list[str]) -> str:
    """Return the file of ``-m package.module`` below the working folder, empty where none is."""
    if "-m" not in words[1:-1]:
        return ""
    path = os.path.join(*words[words.index("-m") + 1].split("."))
    files = (path + ".py", os.path.join(path, "__main__.py"))
    return next((one for one in files if os.path.isfile(one)), "")


def _unconditional(ast: Any, node: Any) -> int:
    """Return the first line that moves something to CUDA under no condition; 0 if none."""
    conditions = (ast.If, ast.IfExp, ast.Try, ast.BoolOp, ast.Compare, ast.ExceptHandler)
    for child in ast.iter_child_nodes(node):
        is_main = isinstance(child, ast.If) and "__name__" in ast.dump(child.test)
        if isinstance(child, conditions) and not is_main:
            continue
        if isinstance(child, ast.Call) and _moves(ast, child):
            return int(child.lineno)
        found = _unconditional(ast, child)
        if found:
            return found
    return 0


def _moves(ast: Any, call: Any) -> bool:
    """Whether a call is ``x.cuda()``, ``x.to("cuda")`` or ``f(device="cuda")``."""
    name = getattr(call.func, "attr", "")
    if name == "cuda":
        return True
    given = list(call.args[:1]) if name in ("to", "device") else []
    given += [one.value for one in call.keywords if one.arg == "device"]
    values = [getattr(one, "value", None) for one in given]
    return any(isinstance(one, str) and one.split(":")[0] == "cuda" for one in values)


def as_wanted(why: str) -> str:
    """Return what this process is told of rehearsals, made an order to rehearse."""
    return json.dumps(dict(_options(), when="always", why=why))


def say(why: str) -> None:
    """Tell the user that the script is rehearsed."""
    sys.stderr.write(
        "[advisor] there is no accelerator here (%s): rehearsing the script, nothing is computed "
        "(--no-rehearse refuses)\n" % why
    )


def _options() -> dict[str, Any]:
    try:
        found = json.loads(os.environ.get(fmt.REHEARSAL, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return float("inf")
