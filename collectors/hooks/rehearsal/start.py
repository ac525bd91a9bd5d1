"""When a rehearsal begins and ends, and what it tells the recording.

It begins in two parts: before the script's first import of torch (the shim registers itself with
torch's libraries) and right after it. It ends when a step has been traced and the step after says
the same, or after some steps that are quick; see ``is_over``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any

from ..trace.frames import is_library
from ..trace.whole import local

DEVICES = "ADVISOR_REHEARSED_DEVICES"
# Steps are repeated while they are quick: loops show their length, several optimizers their order;
# and where an environment was stepped, until it is again.
_MOST_STEPS = 8
_LEAST_STEPS = 2
_QUICK_S = 6.0  # for all of them
_PLAYING_S = 15.0


def begin(session: Any, text: str) -> Rehearsing:
    """Return the rehearsal of this process; where it is impossible the process ends, in words."""
    from .shim import CannotRehearseError

    hook = sys.excepthook
    made: list[Rehearsing] = []

    def failed(kind: Any, error: Any, trace: Any) -> None:
        cause = error
        while cause is not None and not isinstance(cause, CannotRehearseError):
            cause = cause.__cause__ or cause.__context__
        if cause is None and made and made[0].is_at_least:
            _say_least(error)
            raise SystemExit(0)  # what was rehearsed before stands
        if cause is None:
            hook(kind, error, trace)
        else:
            _say(cause)

    sys.excepthook = failed
    try:
        made.append(Rehearsing(session, json.loads(text)))
        return made[0]
    except CannotRehearseError as error:
        _say(error)
        sys.stderr.flush()
        os._exit(2)


def _say(error: Any) -> None:
    sys.stderr.write("[advisor] cannot be rehearsed: %s\n" % error)
    sys.stderr.write("[advisor] hint: %s\n" % error.hint)


def _say_least(error: Any) -> None:
    sys.stderr.write(
        "[advisor] sizes that the network decides are bounded from above only: with the least of "
        "them the script ends (%s: %s)\n" % (type(error).__name__, error)
    )


class Rehearsing:
    """The rehearsal of this process.

    ``asked``: what is asked for, see ``rehearsed`` in ``collectors.run``; ``why``: what the script
    wanted.
    """

    def __init__(self, session: Any, asked: dict[str, Any]) -> None:
        from . import overlay, shim

        self.asked = {"devices": 1, "ranks": 1, "rank": 0, "network": False, "why": "", **asked}
        self.mode: Any = None
        self.folder = _torch_folder()
        self._shim = shim.build(self.folder) if self.folder else ""
        self.passes: Any = None
        self.compiles = False
        self._session = session
        self._first_s = 0.0
        os.environ[DEVICES] = str(max(self.asked["devices"], 1))
        overlay.cover(session.writer.folder)
        session.fact("rehearsal", **self.facts())  # said again in the end, if it comes

    def before_torch(self) -> None:
        """Load the shim: torch is about to be imported."""
        from . import shim

        if self._shim:
            shim.load(self.folder, self._shim)

    def after_torch(self, torch: Any) -> None:
        """Turn the rehearsal on: torch has just been imported."""
        import torch._subclasses.fake_tensor as fake_tensor

        from ..trace.live_memory import LiveMemory
        from . import compiler, cuda, kernels, overlay, parameters, ranks, stubs, values
        from .allocator import followed_resize, rounded
        from .mode import Rehearsal
        from .passes import Passes

        compiler.defer()
        asked, device = self.asked, self.asked["device"]
        kind: Any = fake_tensor.FakeTensorMode
        kind.avoid_device_init = property(lambda self: True)  # no device is asked
        fakes = kind(allow_non_fake_inputs=True)
        fakes.allow_fallback_kernels = False
        notes = values.Notes()
        if not asked["network"]:
            overlay.stay_offline(notes.add)
        self.mode = Rehearsal(fakes, LiveMemory(rounded), notes)
        ranks.set_place(asked["ranks"], asked["rank"], asked["devices"])
        cuda.pretend(device, asked["devices"], self.mode.memory)
        parameters.make_fake(self.mode)
        values.answer_for_fakes(notes)
        kernels.choose_as_cuda(self.mode)
        ranks.pretend(self.mode, notes)
        torch.UntypedStorage.resize_ = followed_resize(
            self.mode.memory, torch.UntypedStorage.resize_
        )
        self._leave_out(torch, notes)
        sys.meta_path.append(stubs.StubFinder(notes))
        torch._C._set_only_lift_cpu_tensors(True)
        self.passes = Passes(self.mode.exchanged)
        self.passes.watch()
        self._enter_threads()
        self.mode.__enter__()

    def _leave_out(self, torch: Any, notes: Any) -> None:
        """Have compilation and checkpoints be noted, and done neither."""
        from .checkpoints import Checkpoints, without_downloads

        loader = torch.utils.data.DataLoader
        made = loader.__init__

        def left_out() -> None:
            self.compiles = True
            notes.add("torch.compile is left out")

        def compiled(model: Any = None, *_: Any, **__: Any) -> Any:
            # Functions that a package compiles for itself are not the script's step.
            is_package = is_library(sys._getframe(1).f_code.co_filename)
            if isinstance(model, torch.nn.Module) or not is_package:
                left_out()
            return (lambda one: one) if model is None else model

        def module_compiled(module: Any, *_: Any, **__: Any) -> None:
            left_out()

        def saved(size: int) -> None:
            self._session.fact(
                "saved", step=self._session.steps, seconds=0.0, delay_s=0.0, bytes=size
            )

        checkpoints = Checkpoints(saved)

        @functools.wraps(made)
        def loader_made(this: Any, *args: Any, **named: Any) -> None:
            is_pinned = bool(named.get("pin_memory"))
            named["pin_memory"] = False  # a thread of torch's that asks the driver
            made(this, *args, **named)
            this._advisor_pins = is_pinned  # what the script says is recorded

        torch.compile, torch.nn.Module.compile = compiled, module_compiled
        torch.save, torch.load = checkpoints.save, checkpoints.load
        if not self.asked["network"]:
            without_downloads(notes.add)
        loader.__init__ = loader_made
        torch.distributions.Distribution.set_default_validate_args(False)

    def _enter_threads(self) -> None:
        """Have threads of the script be rehearsed too, and forked loader workers not."""
        import threading

        thread_type: Any = threading.Thread
        mode, run = self.mode, thread_type.run

        def rehearsed(thread: Any) -> None:
            with mode:
                run(thread)

        def in_child() -> None:
            mode.is_on = False

        thread_type.run = rehearsed
        os.register_at_fork(after_in_child=in_child)

    @property
    def is_at_least(self) -> bool:
        """Whether the step that runs has the least sizes that the network may decide."""
        return self.mode is not None and bool(self.mode.is_least)

    def is_over(self, steps: int, *, has_traced: bool) -> bool:
        """Whether enough steps have been rehearsed."""
        now_s = time.monotonic()
        self._first_s = self._first_s or now_s
        if not has_traced or steps < _LEAST_STEPS:
            return False
        spent_s = now_s - self._first_s
        if self._session.environments.is_open and spent_s < _PLAYING_S:
            return False
        is_slow = spent_s > (steps - 1) * _QUICK_S / _MOST_STEPS
        return is_slow or steps >= _MOST_STEPS

    def step_begins(self) -> None:
        """Count the step's memory, collectives and made-up sizes anew."""
        if self.mode is not None:
            self.mode.memory.begin_step()
            self.mode.sizes_made = 0
            self.mode.placed.clear()
            self.mode.exchanged.clear()

    def step_ended(self, parameters: list[Any], states: list[Any]) -> None:
        """Keep what the traced step held and exchanged.

        Where the network decided sizes in it, the next step is one with the least of them.
        """
        gradients = [p.grad for p in parameters if p.grad is not None]
        from .allocator import reserved

        memory = self.mode.memory
        kinds = (
            ("parameters", parameters), ("optimizer state", states), ("gradients", gradients),
        )  # fmt: skip
        self._session.fact(
            "rehearsed_step",
            peak_bytes=memory.peak,
            reserved_bytes=reserved(memory, int(self.asked["device"]["memory_bytes"])),
            held=memory.held_by((kind, [local(t) for t in tensors]) for kind, tensors in kinds),
            collectives=[
                {"name": name, "calls": calls, "bytes": size}
                for name, (calls, size) in sorted(self.mode.exchanged.items())
            ],
        )
        self.mode.is_least = self.mode.sizes_made > 0

    def least_ended(self, operators: list[dict[str, Any]] | None) -> None:
        """Keep what the step with the least sizes did; None where it did not end."""
        self.mode.is_least = False
        if operators is not None:
            self._session.fact("least_step", operators=operators)

    def facts(self) -> dict[str, Any]:
        """Return what the recording keeps of the rehearsal."""
        notes = None if self.mode is None else self.mode.notes
        said = {} if notes is None else dict(notes.counts)
        return {
            **{name: self.asked[name] for name in ("device", "devices", "rank", "why")},
            "compiles": self.compiles,
            "notes": said,
            "has_decided": notes is not None and notes.has_decided,
        }


def _torch_folder() -> str:
    """Return where torch is installed, without importing it; empty where it is not."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
