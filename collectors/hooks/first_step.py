"""Whether the first step of a script can be waited for on this processor.

Products of matrices are counted as they run, from the shapes that modules see, and divided by what
this machine multiplies at best: a step takes no less. A recording needs as many steps as settle
its clock, or the one that is traced. A script that names CUDA is not waited for longer than the
former; any other may take up the whole time of a recording for the latter. Models that are
compiled are not judged.
"""

from __future__ import annotations

import functools
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Steps within the time of a recording: those that settle the clock (``collectors.derive``), and
# the third, which is traced.
_SETTLING, _TRACED = 30, 3
# A core that nobody measured: two vector units of 512 bits at 3 GHz [flop/s].
_BEST_CORE_FLOP_PER_S = 2e11
# Those who ask for a device in a script's place.
_TRAINERS = ("transformers.trainer", "accelerate", "lightning", "pytorch_lightning")


class FirstStep:
    """Counts the products of the first step, and calls for a rehearsal where there are too many.

    ``options``: of the recording: ``flop_per_s``, ``limit_s``; ``names_cuda``: whether the script
    does by now; ``is_over``: whether a step has ended; ``give_up``: called with why.
    """

    def __init__(
        self, options: dict[str, Any], names_cuda: Callable[[], bool],
        is_over: Callable[[], bool], give_up: Callable[[str], None],
    ) -> None:  # fmt: skip
        best = _BEST_CORE_FLOP_PER_S * (os.cpu_count() or 1)
        self._flop_per_s = float(options.get("flop_per_s") or best)
        self._limit_s = float(options.get("limit_s") or 0.0)
        self._names_cuda, self._is_over, self._give_up = names_cuda, is_over, give_up
        self._flop = 0.0
        self._handle: Any = None

    def watch(self, torch: Any) -> None:
        """Begin to count, where a script can be rehearsed at all."""
        if not sys.platform.startswith("linux") or not self._limit_s:
            return
        nn = torch.nn

        def ran(module: Any, given: Any, output: Any) -> None:
            if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
                try:
                    products = _products(module, given[0], output)
                except Exception:  # a layer of somebody's own that takes something else
                    return
                self._flop += products * (3.0 if torch.is_grad_enabled() else 1.0)
                self._judge()

        original = torch.compile

        @functools.wraps(original)
        def compiling(*args: Any, **named: Any) -> Any:
            self._handle.remove()  # what is compiled would be compiled again when it goes later
            return original(*args, **named)

        self._handle = nn.modules.module.register_module_forward_hook(ran)
        torch.compile = compiling

    def _judge(self) -> None:
        if self._is_over():
            self._handle.remove()
            return
        steps = _SETTLING if self._names_cuda() else _TRACED
        least_s = self._flop / self._flop_per_s
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and least_s > self._limit_s / steps and not _is_child():
            self._handle.remove()
            self._give_up("a step takes more than %.0f s on this processor" % least_s)


def _products(module: Any, given: Any, output: Any) -> float:
    """Return a layer's operations: every weight once a position, of the coarser side."""
    kind = "features" if hasattr(module, "in_features") else "channels"
    inputs, outputs = getattr(module, "in_" + kind), getattr(module, "out_" + kind)
    positions = min(given.numel() / inputs, output.numel() / outputs)
    return float(2.0 * module.weight.numel() * positions)


def is_asked_by_trainer() -> bool:
    """Whether a library that chooses the device itself has been imported."""
    return any(name in sys.modules for name in _TRAINERS)


def _is_child() -> bool:
    """Whether another process of the script started this one: its command is not the script's."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and multiprocessing.parent_process() is not None
