"""One real step of the user's own loop, operator by operator.

A dispatch mode sees every operator below autograd, runs it as it would have run and notes what it
was. Nothing is replayed and no tensor is replaced, so the numbers the script computes are the
ones it would have computed without. Everything that takes thinking happens in ``operators`` after
the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..gradient_norms import is_compiled
from ..loaders import Loaders
from ..optimizers import Optimizers
from . import operators
from .adapters import adapters_in
from .live_memory import LookedAtMemory
from .modules import Modules
from .storages import key_of, tensors_in
from .whole import WholeModel

# Fake tensors ask it for their device; it computes nothing.
_DEVICE: Any = torch.ops.prim.device.default


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator of the step, in order."""

    # An operator of higher order (flex attention) is noted as one.
    supports_higher_order_operators = True

    def __init__(
        self, storages: LookedAtMemory, modules: Modules, device: str, rehearsal: Any = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[operators.OperatorCall] = []
        self.is_on = True
        self.failure: BaseException | None = None
        self.is_in_optimizer = False
        self._storages = storages
        self._modules = modules
        self._timer = Timer("" if rehearsal is not None else device)
        self._device = device
        self._rehearsal = rehearsal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note it."""
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        if self._rehearsal is not None:
            if not self._rehearsal.is_on:
                return func(*args, **kwargs)
            if func is _DEVICE:
                return args[0].device
            if any(self._rehearsal.wraps(kind) for kind in types):
                self._rehearsal.place(args)
                return NotImplemented  # the parts on this rank come by themselves
        started = self._timer.start()
        result = func(*args, **kwargs)
        took = self._timer.stop(started)
        try:
            self._note(func, args, kwargs, result, took)
        except Exception as error:
            self.failure = self.failure or error
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, took: Any) -> None:
        node = torch._C._current_autograd_node()
        modules = self._modules
        owner = modules.owner
        if node is not None and not modules.is_inside:
            owner = modules.of_node(node._sequence_nr())
        call = operators.observe(func, args, kwargs, result)
        call.took = took
        call.owner = owner
        call.is_backward = node is not None
        # LBFGS and its like evaluate the loss inside their step.
        is_evaluation = node is not None or modules.is_inside
        call.is_optimizer = self.is_in_optimizer and not is_evaluation
        call.is_inside_module = modules.is_inside
        self.calls.append(call)
        if call.writes or call.is_view:
            known = {key for key, _ in call.reads}
            for tensor in tensors_in(result):
                if key_of(tensor) not in known:
                    self._storages.add(tensor, owner if node is None else -1)
        if not self._is_followed:  # else its own memory knows what dies, and when
            self._storages.operator_ended()

    @property
    def _is_followed(self) -> bool:
        mode = self._rehearsal
        return mode is not None and self._device == "cuda" and mode.memory.is_followed


class Timer:
    """Times operators: by the clock where they run in step with Python, else by device events."""

    def __init__(self, device: str) -> None:
        self._is_clock = device != "cuda"
        self.stop: Any = self._stop_clock if self._is_clock else self._stop_event
        self.start: Any = time.perf_counter_ns if self._is_clock else self._record
        if not device:  # a rehearsal's operators take no time that says anything
            self.start, self.stop = int, lambda _: 0

    def _stop_clock(self, started: int) -> int:
        return time.perf_counter_ns() - started

    def _record(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _stop_event(self, started: Any) -> Any:
        return started, self._record()

    def settle(self) -> Callable[[Any], int]:
        """Return what turns a stop's result into ns; waits for the device once."""
        if self._is_clock:
            return int
        torch.cuda.synchronize()
        return lambda pair: int(pair[0].elapsed_time(pair[1]) * 1e6)


class DeepTrace:
    """One traced step, from the end of a step to the end of the next."""

    def __init__(
        self, optimizers: Optimizers, loaders: Loaders, failed: Any, rehearsal: Any = None
    ) -> None:
        self._optimizers = optimizers
        self._loader = loaders.last
        self._samples = self._loader.samples if self._loader is not None else 0
        self._failed = failed
        self._storages = LookedAtMemory()
        self._modules = Modules()
        self._backwards = 0
        self._has_evaluated = False  # the optimizer itself
        self._saved: list[list[tuple[int, int, int]]] = []
        self._passes: list[tuple[int, int]] = []  # calls of each, of a rehearsal
        self._pass_begin = 0
        parameters = optimizers.parameters()
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._device = parameters[0].device.type if parameters else "cuda" if is_used else "cpu"
        self._trace = Trace(self._storages, self._modules, self._device, rehearsal)
        self._begin_ns = 0
        self._handle: Any = None

    @staticmethod
    def begin(
        optimizers: Optimizers, loaders: Loaders, failed: Any, rehearsal: Any = None
    ) -> DeepTrace | None:
        """Start tracing; None where another mode of the script's is in the way.

        ``rehearsal``: the mode of a rehearsal, on top of which the trace works, untimed.
        """
        from torch.optim import optimizer
        from torch.utils import _python_dispatch

        if any(
            one is not rehearsal for one in _python_dispatch._get_current_dispatch_mode_stack()
        ):
            failed("deep step", RuntimeError("the script traces operators itself"))
            return None
        step = DeepTrace(optimizers, loaders, failed, rehearsal)
        parameters = optimizers.parameters()
        gradients = [p.grad for p in parameters if p.grad is not None]
        step._storages.add_model(parameters + gradients + optimizers.states())
        step._handle = optimizer.register_optimizer_step_pre_hook(
            lambda *_: step.optimizer_runs(True)
        )
        step._modules.__enter__()
        step._trace.__enter__()  # type: ignore[no-untyped-call]
        step._begin_ns = time.perf_counter_ns()
        return step

    def optimizer_runs(self, is_running: bool) -> None:
        """Say whether the operators that follow are an optimizer's."""
        self._trace.is_in_optimizer = is_running
        if self._trace._rehearsal is not None:
            self._trace._rehearsal.memory.update_runs(is_running)

    def loader_runs(self, is_running: bool) -> None:
        """Leave out what a loader computes inside the loop: it is not the model's."""
        self._trace.is_on = not is_running

    def backward_begins(self) -> None:
        """Take stock: what lives now is what the forward pass keeps for the backward pass.

        An optimizer that evaluates the loss itself is given a micro-batch (Lightning gives every
        optimizer the last one), which it may repeat (LBFGS).
        """
        if not (self._trace.is_in_optimizer and self._has_evaluated):
            self._backwards += 1
        self._has_evaluated |= self._trace.is_in_optimizer
        self._saved.append(self._storages.living())

    def pass_ended(self, is_left_out: bool) -> None:
        """Note the end of a rehearsed pass; one that was left out is the second again."""
        calls = self._trace.calls
        if is_left_out and len(self._passes) > 1:
            second = self._passes[1]
            del calls[self._pass_begin :]
            self._saved[-1] = self._saved[1]
            for call in calls[slice(*second)]:
                call.times += 1
        else:
            self._passes.append((self._pass_begin, len(calls)))
        self._pass_begin = len(calls)

    @property
    def roots(self) -> list[Any]:
        """The modules that were called from outside of any other."""
        return self._modules.roots

    def abandon(self) -> None:
        """Note nothing any more: this process was forked from the one that is traced."""
        self._trace.is_on = False

    def end(self) -> dict[str, Any] | None:
        """Stop tracing and return the step as facts; None if it went wrong."""
        duration_ns = time.perf_counter_ns() - self._begin_ns
        self._trace.is_on = False
        if not self._leave():
            self._failed("deep step", RuntimeError("another mode is still on top of the trace"))
            return None
        try:
            facts = self._facts()
        except Exception as error:
            self._failed("deep step", error)
            return None
        if self._trace.failure is not None:
            self._failed("operator", self._trace.failure)
            facts["flags"].append("some operators could not be read")
        return dict(facts, duration_ns=duration_ns)

    def _leave(self) -> bool:
        from torch.utils import _python_dispatch

        self._modules.__exit__()
        self._handle.remove()  # a pre-hook, removed where no pre-hooks run: after the step
        stack = _python_dispatch._get_current_dispatch_mode_stack()
        if not stack or stack[-1] is not self._trace:
            return False  # left in place, switched off: whoever pops it pops his own
        self._trace.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True

    def _facts(self) -> dict[str, Any]:
        settle = self._trace._timer.settle()
        for call in self._trace.calls:
            call.took = settle(call.took)
        parameters = self.parameters
        gradients = [p.grad for p in parameters if p.grad is not None]
        fixed = self._storages.fixed | {key_of(gradient) for gradient in gradients}
        for root in self._modules.roots:
            fixed.update(key_of(tensor) for tensor in root.buffers())
            fixed.update(key_of(tensor) for tensor in root.parameters())
        model = self._model(parameters)
        summary = operators.summarise(
            self._trace.calls, fixed, self._modules, self._saved, model.parts, model.sizes
        )
        flags = summary.pop("flags")
        samples = self._count_samples(flags)
        return {
            "samples": samples,
            "micro_batches": max(1, self._backwards),
            **self._frontiers(fixed, model),
            "device": self._device,
            "is_compiled": is_compiled(),
            "flags": flags,
            "buffer_bytes": _buffer_bytes(self._modules.roots),
            **model.facts(self._optimizers.parameters(), self._optimizers.states()),
            **adapters_in(self._modules.roots),
            **summary,
        }

    def _frontiers(self, fixed: set[int], model: WholeModel) -> dict[str, Any]:
        """Return the moments that can be the step's peak; a rehearsal has followed every block."""
        mode = self._trace._rehearsal
        if not self._trace._is_followed:
            found, _ = self._storages.frontiers(fixed, model.parts)
            return {"memory_frontier": found}
        from ..rehearsal.allocator import losses

        found, update = mode.memory.frontiers(fixed, model.parts)
        lost = losses(mode.memory, fixed)
        return {"memory_frontier": found, "update_frontier": update, "lost": lost}

    def _model(self, parameters: list[Any]) -> WholeModel:
        """Return the model that the step trains: of a rehearsal's one rank, the whole one."""
        mode, calls = self._trace._rehearsal, self._trace.calls
        if mode is None:
            return WholeModel(parameters)
        return WholeModel.of_rank(parameters, self._modules.roots, calls, mode.placed)

    @property
    def parameters(self) -> list[Any]:
        """Return the optimizers' and the modules' parameters; else the leaves that learn."""
        found = {id(p): p for p in self._optimizers.parameters()}
        for root in self._modules.roots:
            found.update((id(p), p) for p in root.parameters())
        if not found:
            leaves = [leaf() for call in self._trace.calls for leaf in call.leaves]
            found = {id(p): p for p in leaves if p is not None}
        return list(found.values())

    def _count_samples(self, flags: list[str]) -> int:
        if self._loader is not None and self._loader.samples > self._samples:
            return self._loader.samples - self._samples
        backwards, sizes = max(1, self._backwards), self._modules.leading_sizes
        learnt_from = [n for n, is_one in zip(sizes, self._modules.are_learnt_from) if is_one]
        sizes = learnt_from or sizes
        if sizes:
            usual = max(sizes, key=sizes.count)
            # Samples one by one, and one pass for all of them: an episode's states.
            singles = {} if usual > 1 or self._has_evaluated else self._modules.singles
            return max([usual * backwards, *singles.values()])
        guess = operators.leading_size(self._trace.calls, self._storages.fixed)
        if guess:
            flags.append("no loader and no module: samples guessed from the largest product")
            return guess * backwards
        flags.append("samples unknown")
        return 1


def _buffer_bytes(roots: list[Any]) -> int:
    """Return the bytes of the buffers that modules have which learn, each once."""
    learning = [root for root in roots if any(p.requires_grad for p in root.parameters())]
    buffers = {id(tensor): tensor for root in learning for tensor in root.buffers()}
    return sum(int(one.numel()) * int(one.element_size()) for one in buffers.values())
