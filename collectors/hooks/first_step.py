"""Whether the first step of a script can be waited for on this processor.

Products of matrices are counted as they run, from the shapes that modules see, and divided by what
this machine multiplies at best: a step takes no less. A recording needs as many steps as settle
its clock, or the one that is traced. A script that names CUDA is meant for a GPU: it is recorded
only where the former take a minute, also by the clock, and neither what it compiles nor what it
computes in 16 bits on CUDA is tried on a processor. Any other may take up the whole time of a
recording for the one step; what it compiles is judged by the weights that its inputs meet.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Steps within the time of a recording: those that settle the clock (``collectors.derive``), and
# the third, which is traced.
_SETTLING, _TRACED = 30, 3
# All that a script which names CUDA may take here [s], and by the clock, which knows of backward
# passes, loaders and other programs: its first step so far, the whole of it with what is made once
# in it, and the second, which is one of those that settle the clock [s].
_QUICK_S, _MOST_S = 60.0, (30.0, 4.0, 2.0)
# A core that nobody measured: two vector units of 512 bits at 3 GHz [flop/s].
_BEST_CORE_FLOP_PER_S = 2e11
# Those who ask for a device in a script's place.
_TRAINERS = ("transformers.trainer", "accelerate", "lightning", "pytorch_lightning")


class FirstStep:
    """Counts the products of the first step, and calls for a rehearsal where there are too many.

    ``options``: of the recording: ``flop_per_s``, ``limit_s``; ``names_cuda``: whether the script
    does by now; ``steps``: that have ended; ``give_up``: called with why.
    """

    def __init__(
        self, options: dict[str, Any], names_cuda: Callable[[], bool],
        steps: Callable[[], int], give_up: Callable[[str], None],
    ) -> None:  # fmt: skip
        best = _BEST_CORE_FLOP_PER_S * (os.cpu_count() or 1)
        self._flop_per_s = float(options.get("flop_per_s") or best)
        self._limit_s = float(options.get("limit_s") or 0.0)
        self._names_cuda, self._steps, self._give_up = names_cuda, steps, give_up
        self._flop = self._begin_s = 0.0
        self._step = 0
        self._handle: Any = None

    def watch(self, torch: Any) -> None:
        """Begin to count, where a script can be rehearsed at all."""
        if not sys.platform.startswith("linux") or not self._limit_s:
            return
        nn = torch.nn

        def ran(module: Any, given: Any, output: Any) -> None:
            if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
                self._count(torch, _products, module, given[0], output)

        self._handle = nn.modules.module.register_module_forward_hook(ran)
        self._watch_compiler(torch)
        autocast: Any = torch.autocast
        begin = autocast.__init__

        @functools.wraps(begin)
        def begun(own: Any, device_type: str, *args: Any, **named: Any) -> None:
            begin(own, device_type, *args, **named)
            if device_type == "cuda" and (args[1] if args[1:] else named.get("enabled", True)):
                self._end("16 bits on CUDA")

        autocast.__init__ = begun

    def _watch_compiler(self, torch: Any) -> None:
        """Compile nothing that is meant for CUDA, and judge the rest by what it is given."""
        from .trace.frames import is_library

        module: Any = torch.nn.Module
        compile_function, compile_module = torch.compile, module.compile

        def given(model: Any, inputs: Any, named: Any) -> None:
            tensors = [one for one in (*inputs, *named.values()) if torch.is_tensor(one)]
            if tensors:
                self._count(torch, _least_products, torch, model, tensors[0])

        def begins(model: Any) -> None:
            if not isinstance(model, module) and is_library(sys._getframe(2).f_code.co_filename):
                return  # a package's own function
            self._handle.remove()  # what is compiled would be compiled again when it goes later
            if self._names_cuda():
                self._end("what it compiles is meant for CUDA")

        @functools.wraps(compile_function)
        def compiling(model: Any = None, *args: Any, **named: Any) -> Any:
            begins(model)
            compiled = compile_function(model, *args, **named)
            if isinstance(model, module):
                self._handle = compiled.register_forward_pre_hook(
                    lambda _, inputs, more: given(model, inputs, more), with_kwargs=True
                )
            return compiled

        @functools.wraps(compile_module)
        def module_compiling(model: Any, *args: Any, **named: Any) -> Any:
            begins(model)
            return compile_module(model, *args, **named)

        torch.compile, module.compile = compiling, module_compiling

    def _count(self, torch: Any, products: Callable[..., float], *given: Any) -> None:
        """Add a module's operations, and judge the step by all that were seen."""
        try:
            found = products(*given)
        except Exception:  # a layer of somebody's own that takes something else
            return
        self._flop += found * (3.0 if torch.is_grad_enabled() else 1.0)
        self._judge()

    def _judge(self) -> None:
        names_cuda, now_s, steps = self._names_cuda(), time.monotonic(), self._steps()
        if steps and not names_cuda:
            self._handle.remove()
            return
        took_s = now_s - (self._begin_s or now_s)
        if steps != self._step:
            self._step, self._flop, self._begin_s = steps, 0.0, 0.0
        self._begin_s = self._begin_s or now_s
        limit_s = self._limit_s / _TRACED
        if names_cuda:
            limit_s = min(self._limit_s, _QUICK_S) / _SETTLING
        least_s = self._flop / self._flop_per_s
        if least_s > limit_s:
            self._end("a step takes more than %.0f s on this processor" % least_s)
        most_s = _MOST_S[min(steps, 2)]
        if names_cuda and took_s > most_s:
            self._end("a step takes more than %.0f s on this processor" % most_s)
        if steps > 1:
            self._handle.remove()

    def _end(self, why: str) -> None:
        """Give up, where this is the script's own process."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._steps() < 3 and not _is_child():
            self._handle.remove()
            self._give_up(why)


def _products(module: Any, given: Any, output: Any) -> float:
    """Return a layer's operations: every weight once a position, of the coarser side."""
    kind = "features" if hasattr(module, "in_features") else "channels"
    inputs, outputs = getattr(module, "in_" + kind), getattr(module, "out_" + kind)
    positions = min(given.numel() / inputs, output.numel() / outputs)
    return float(2.0 * module.weight.numel() * positions)


def _least_products(torch: Any, model: Any, given: Any) -> float:
    """Return what the weights of a model's layers compute at least, each once for every token.

    Of anything but tokens: once for every sample.
    """
    is_token = not (given.is_floating_point() or given.is_complex())
    weights = sum(
        one.weight.numel() for one in model.modules()
        if isinstance(one, (torch.nn.Linear, torch.nn.modules.conv._ConvNd))
    )  # fmt: skip
    return float(2.0 * weights * (given.numel() if is_token else len(given)))


def is_asked_by_trainer() -> bool:
    """Whether a library that chooses the device itself has been imported."""
    return any(name in sys.modules for name in _TRAINERS)


def _is_child() -> bool:
    """Whether another process of the script started this one: its command is not the script's."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and multiprocessing.parent_process() is not None
