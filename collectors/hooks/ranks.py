"""Squared norms of gradients of one pass and of a whole step: what the noise scale is made of.

A pass of one process sees the fewest samples, the gradient that is applied the most. Both stand
side by side where a step accumulates several passes, or several ranks average: then the two norms
tell how noisy a gradient is (``planners/systems/hydrozoa.py``). In sampled steps they are taken:

- the first pass: of what it left in ``.grad``; under DistributedDataParallel, which exchanges
  before the pass is over, by hooks on the parameters that are there for this step alone;
- the last pass: of ``.grad``, before anybody clips it.

Gradients are read and never changed. Values stay on their device until some are there.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref

from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .state import ProcessState


# Taking norms may take this share of the time, in time of the main thread's own: neighbours that
# make it wait for a core are no cost of ours.
_SHARE = 2.5e-3
_PERIOD_NS = 50_000_000
_AT_ONCE = 32
# Gradients of the very first steps are like no others; until then other things are due, too.
_FIRST = 13
# A step of one pass in one process has one norm only: so often it is looked whether it stays so.
_LOOKS = 3


class GradientSampler:
    """The norms of the sampled steps of one process."""

    def __init__(self, state: ProcessState) -> None:
        self.is_open = self.is_wrapped = False
        self._state = state
        self._is_off = False
        self._due_ns = self._took_ns = 0
        self._looks = _LOOKS
        self._parameters: list[Any] = []
        self._handles: list[Any] = []
        self._locals: list[Any] = []
        self._first: Any = None
        self._last: Any = None
        self._passes = self._measured_at = 0
        self._expected = 1
        self._taken: list[tuple[int, Any, Any]] = []

    # What the session calls between steps, and in a step that is sampled.

    def run(self, now_ns: int) -> None:
        """Sample the next step, if it is time to."""
        state = self._state
        is_early = state.steps < _FIRST or now_ns < self._due_ns
        if self._is_off or self.is_open or is_early:
            return
        self._took_ns = 0
        try:
            if not self._may_begin():
                return
            self._passes = self._measured_at = 0
            self._first = self._last = None
            self._locals = []
            if state.data_parallel is not None and not self.is_wrapped:
                self._handles = [
                    one.register_hook(self._local) for one in self._parameters if one.requires_grad
                ]
            self.is_open = True
        except Exception as error:
            self._give_up(error)

    def pass_ended(self) -> None:
        """Take the norm of what a backward pass left, if it is the first or the last."""
        self._passes += 1
        begin_ns = time.thread_time_ns()
        try:
            self._remove()
            is_first, is_last = self._passes == 1, self._passes >= self._expected
            if is_first or (is_last and not self.is_wrapped):
                norm2 = self._norm2([one.grad for one in self._parameters])
                if is_first:
                    self._first = self._sum(self._locals) if self._locals else norm2
                if not self.is_wrapped:
                    self._last, self._measured_at = norm2, self._passes
        except Exception as error:
            self._give_up(error)
        self._took_ns += time.thread_time_ns() - begin_ns

    def exchanged(self) -> None:
        """Take the norm of what the profiler averaged over its ranks after a pass."""
        begin_ns = time.thread_time_ns()
        try:
            if self._passes >= self._expected:
                self._last = self._norm2([one.grad for one in self._parameters])
                self._measured_at = self._passes
        except Exception as error:
            self._give_up(error)
        self._took_ns += time.thread_time_ns() - begin_ns

    def step_ended(self) -> None:
        """Keep what the step has shown."""
        self.is_open = False
        self._remove()
        passes, now_ns = self._passes, time.monotonic_ns()
        self._due_ns = now_ns + max(_PERIOD_NS, int(self._took_ns / _SHARE))
        has_two = passes > 1 or self._state.data_parallel is not None or self.is_wrapped
        if not has_two:
            self._looks -= 1
            self._is_off |= self._looks <= 0
        elif passes and self._measured_at == passes and self._first is not None:
            self._looks = _LOOKS
            self._taken.append((passes, self._first, self._last))
            if len(self._taken) >= _AT_ONCE:
                self.write()
        else:  # more or fewer passes than before: the next step is sampled with these
            self._due_ns = 0
        self._expected = max(passes, 1)
        self._first = self._last = None

    def write(self) -> None:
        """Record the norms taken so far: passes of the step, first norm, last norm, squared."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        try:
            torch = sys.modules["torch"]
            with torch.no_grad():
                values = torch.stack([one for _, *both in taken for one in both]).tolist()
            rows = zip([passes for passes, _, _ in taken], values[::2], values[1::2])
            self._state.fact("gradient_norms", rows=[list(row) for row in rows])
        except Exception as error:
            self._give_up(error)

    def close(self) -> None:
        """Leave the step that is under way alone, and record what is there."""
        self.is_open = False
        self._remove()
        self.write()

    def forget(self) -> None:
        """Leave what was taken to the parent, after a fork."""
        self.is_open = False
        self._taken, self._is_off = [], True

    # Inside.

    def _may_begin(self) -> bool:
        """Whether two norms can be had of the next step."""
        state, torch = self._state, sys.modules.get("torch")
        if torch is None or state.deep is not None or state.clock != fmt.CLOCK_OPTIMIZER:
            return False
        optimizers = state.optimizers.alive()
        if len(optimizers) != 1 or type(optimizers[0]).__name__ == "LBFGS":
            self._is_off = True  # several losses of several models: no parts of one gradient
            return False
        is_shared = state.is_together and not self.is_wrapped
        if is_shared and (state.data_parallel is None or is_compiled()):
            self._is_off = True  # sharded, or exchanged by others; hooks would compile anew
            return False
        self._parameters = state.optimizers.parameters()
        self._is_off = len({one.device for one in self._parameters}) != 1
        return not self._is_off

    def _local(self, gradient: Any) -> None:
        """Note a gradient before it is exchanged; this is torch's hook itself."""
        begin_ns = time.thread_time_ns()
        try:
            self._locals.append(self._norm2([gradient]))
        except Exception as error:
            self._give_up(error)
        self._took_ns += time.thread_time_ns() - begin_ns

    def _norm2(self, gradients: list[Any]) -> Any:
        torch = sys.modules["torch"]
        with torch.no_grad():
            there = [one.detach() for one in gradients if one is not None]
            if any(one.layout is not torch.strided for one in there):
                raise TypeError("sparse gradients")
            if hasattr(torch, "_foreach_norm") and len({one.dtype for one in there}) == 1:
                norms = torch._foreach_norm(there, 2)
            else:
                norms = [torch.linalg.vector_norm(one) for one in there]
            return torch.stack([one.float() for one in norms]).square().sum()

    def _sum(self, values: list[Any]) -> Any:
        torch = sys.modules["torch"]
        with torch.no_grad():
            return torch.stack(values).sum()

    def _remove(self) -> None:
        handles, self._handles = self._handles, []
        for one in handles:
            one.remove()

    def _give_up(self, error: Exception) -> None:
        """Take no norms any more: what a script's tensors cannot do is no failure of its own."""
        self._is_off, self.is_open = True, False
        self._taken = []
        self._remove()
        self._state.fact("gradient_norms", why=repr(error)[:200])


def is_compiled() -> bool:
    """Whether torch.compile has made graphs in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0


# The tensors that ranks exchange, in pieces and in an order that all of them agree on.


_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's own default


def unpack(flat: Any, tensors: list[Any]) -> None:
    """Copy what was exchanged in one piece back into the tensors that it was made of."""
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


def buckets(tensors: list[Any]) -> list[list[Any]]:
    """Return the tensors in groups of one type and device, each of some 25 MiB."""
    groups: dict[Any, list[list[Any]]] = {}
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        size = tensor.numel() * tensor.element_size()
        its = groups.setdefault(kind, [[]])
        if its[-1] and sizes.get(kind, 0) + size > _BUCKET_BYTES:
            its.append([])
            sizes[kind] = 0
        its[-1].append(tensor)
        sizes[kind] = sizes.get(kind, 0) + size
    return [bucket for its in groups.values() for bucket in its]


def buffers_beside(parameters: list[Any]) -> list[Any]:
    """Return the floating-point buffers of the modules that hold any of the parameters.

    In an order that all ranks agree on: by the innermost module's parameters, then by name.
    """
    import gc

    import torch

    place = {id(one): number for number, one in enumerate(parameters)}
    found: dict[int, tuple[Any, Any]] = {}
    for module in gc.get_objects():
        if not issubclass(type(module), torch.nn.Module):  # asks no object for its class
            continue
        places = [place[id(one)] for one in module.parameters() if id(one) in place]
        for name, buffer in module.named_buffers() if places else ():
            if buffer.is_floating_point():
                key = len(places), min(places), len(name), name
                found[id(buffer)] = min(
                    found.get(id(buffer), (key, buffer)), (key, buffer), key=_first
                )
    return [buffer for _, buffer in sorted(found.values(), key=_first)]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


# ``profile --workers N`` of a script without a process group: its ranks train together.
#
# Every rank runs the script unchanged. What ``DistributedDataParallel`` and ``DistributedSampler``
# would do is done around it:
#
# - parameters begin as rank 0's, when the first loader begins after an optimizer was made;
# - a loader that shuffles delivers the rank's share of the data, in an order that all agree on;
# - after each backward pass the gradients that it made are averaged over the ranks, and buffers
#   (running statistics) become rank 0's.
#
# Averaging after a pass is right for any number of optimizers, clipping, loss scaling and
# accumulation: a sum of averages is the average of the sums. It is not overlapped with the pass,
# so the waiting is what DDP would take at most. A script that joins a process group itself, or
# makes a ``DistributedDataParallel``, is left to itself.


# Optimizers that decide by the value of the loss, which is each rank's own: ranks would part.
_BY_LOSS = ("LBFGS",)
_SHARED = "DistributedSampler"


class Wrapping:
    """The state of a wrapped rank.

    Attributes
    ----------
    is_off : bool
        The script trains together by itself, or this process is not a rank any more.
    """

    def __init__(self, session: Any, workers: int, port: str) -> None:
        self._session = session
        self._workers = workers
        self._port = port
        self._pid = os.getpid()
        self._optimizers: list[Any] = []
        self._parameters: list[Any] = []
        self._seen = 0
        self._touched: set[int] = set()
        self._buffers: list[Any] | None = None
        self._dist: Any = None
        self._must_align = False
        self._shared: list[tuple[Any, dict[str, Any]]] = []
        self.is_off = False

    # What the patches call.

    def optimizer_made(self, optimizer: Any) -> None:
        """Join the others with the first optimizer; take in its parameters."""
        if not self._is_on():
            return
        if type(optimizer).__name__ in _BY_LOSS:
            self._refuse(
                "%s decides by the loss, which differs from rank to rank"
                % type(optimizer).__name__
            )
        if self._dist is None and not self._join():
            return
        self._optimizers.append(weakref.ref(optimizer))
        self._take_parameters()
        self._must_align = True

    def loader_made(self, loader: Any) -> None:
        """Give a loader that shuffles the rank's share of its data."""
        if not self._is_on() or loader.batch_size is None:
            return
        sampler: Any = getattr(loader, "sampler", None)
        if type(sampler).__name__ != "RandomSampler" or sampler.replacement:
            return
        if sampler.num_samples != len(loader.dataset):
            return
        from torch.utils.data import BatchSampler
        from torch.utils.data.distributed import DistributedSampler

        rank = int(os.environ["RANK"])
        mine: Any = DistributedSampler(loader.dataset, self._workers, rank, shuffle=True)
        names = "sampler", "batch_sampler"
        self._shared.append((loader, {name: loader.__dict__[name] for name in names}))
        # Past the loader's own ``__setattr__``, which lets nobody change these.
        loader.__dict__["sampler"] = mine
        loader.__dict__["batch_sampler"] = BatchSampler(mine, loader.batch_size, loader.drop_last)

    def loader_begins(self, loader: Any) -> None:
        """Begin with common parameters, and each epoch with a new order."""
        if not self._is_on():
            return
        sampler: Any = getattr(loader, "sampler", None)
        if type(sampler).__name__ == _SHARED and any(loader is one for one, _ in self._shared):
            sampler.set_epoch(sampler.epoch + 1)
        self._align()

    def backward_ended(self) -> None:
        """Average the gradients that the pass made."""
        if self._dist is None or not self._is_on():
            return
        import torch

        guard = getattr(torch.utils._python_dispatch, "_disable_current_modes", None)
        with torch.no_grad():
            if guard is None:
                self._exchange(torch)
            else:
                with guard():  # a step may be traced: this is not the script's work
                    self._exchange(torch)
        if self._session.gradients.is_open:
            self._session.gradients.exchanged()

    def give_way(self) -> None:
        """Leave training together to the script, which has begun to see to it."""
        if self.is_off:
            return
        self.is_off = True
        self._session.gradients.is_wrapped = False
        for loader, names in self._shared:
            loader.__dict__.update(names)
        self._session.fact("wrapping", state="left to the script")

    def leave_group(self) -> None:
        """Close the process group that was opened here."""
        if self._dist is not None and os.getpid() == self._pid and self._dist.is_initialized():
            self._dist.destroy_process_group()
        self._dist = None

    # Inside.

    def _is_on(self) -> bool:
        return not self.is_off and os.getpid() == self._pid

    def _join(self) -> bool:
        """Open the process group; False where the script has one."""
        import torch.distributed as dist

        if not dist.is_available():
            self._refuse("this torch was built without torch.distributed")
        if dist.is_initialized():
            self.give_way()
            return False
        # A port of our own: the script may want its one, with a group of its own, later.
        address = "tcp://%s:%s" % (os.environ["MASTER_ADDR"], self._port)
        dist.init_process_group(
            "gloo", init_method=address, rank=int(os.environ["RANK"]), world_size=self._workers
        )
        self._dist = dist
        atexit.register(self.leave_group)
        self._session.gradients.is_wrapped = True
        self._session.fact("wrapping", state="wrapped", workers=self._workers)
        return True

    def _take_parameters(self) -> None:
        """Take in the optimizers' parameters that are new: groups may be added at any time."""
        optimizers = [one for one in (make() for make in self._optimizers) if one is not None]
        groups = [group["params"] for one in optimizers for group in one.param_groups]
        if sum(map(len, groups)) == self._seen:
            return
        self._seen = sum(map(len, groups))
        self._buffers = None
        known = {id(one) for one in self._parameters}
        for parameter in (one for group in groups for one in group):
            if id(parameter) in known:
                continue
            known.add(id(parameter))
            self._parameters.append(parameter)
            register = getattr(parameter, "register_post_accumulate_grad_hook", None)
            if register is not None and parameter.is_leaf and parameter.requires_grad:
                register(self._made_gradient)

    def _made_gradient(self, parameter: Any) -> None:
        self._touched.add(id(parameter))

    def _align(self) -> None:
        """Make all parameters and buffers rank 0's, once after an optimizer was made."""
        if self._dist is None or not self._must_align:
            return
        self._must_align = False
        import torch

        with torch.no_grad():
            for parameter in self._parameters:
                # ``data``: the graph of a pass that has begun is none the wiser.
                self._dist.broadcast(parameter.data, 0)
        self._send_buffers()
        # The same seed on every rank would draw the same noise, and the same batches where the
        # script draws them itself. Rank 0 stays as the script wants it.
        rank = int(os.environ["RANK"])
        if rank:
            torch.manual_seed(torch.initial_seed() + rank)
            numpy, random = sys.modules.get("numpy"), sys.modules.get("random")
            if random is not None:
                random.seed(torch.initial_seed())
            if numpy is not None:
                numpy.random.seed(torch.initial_seed() % 2**32)

    def _exchange(self, torch: Any) -> None:
        self._take_parameters()
        self._align()
        touched, self._touched = self._touched, set()
        has_hooks = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
        flags = torch.zeros(len(self._parameters), dtype=torch.uint8)
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is not None and (id(parameter) in touched or not has_hooks):
                if parameter.grad.is_sparse:
                    self._refuse("its gradients are sparse")
                flags[place] = 1
        # Which parameters a pass reaches may depend on the data: all exchange what any has.
        self._dist.all_reduce(flags, self._dist.ReduceOp.MAX)
        chosen = [one for one, flag in zip(self._parameters, flags.tolist()) if flag]
        for parameter in chosen:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in buckets([one.grad for one in chosen]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self._dist.all_reduce(flat)
            flat /= self._workers
            unpack(flat, bucket)
        self._send_buffers()

    def _send_buffers(self) -> None:
        if self._buffers is None:
            self._buffers = buffers_beside(self._parameters)
        import torch

        for bucket in buckets([one.data for one in self._buffers]):
            flat = torch.cat([buffer.reshape(-1) for buffer in bucket])
            self._dist.broadcast(flat, 0)
            unpack(flat, bucket)

    def _refuse(self, why: str) -> None:
        """End the script: what it would compute is not what N ranks compute together."""
        self._session.fact("wrapping", state="refused", why=why)
        self.is_off = True
        self._session.release()
        raise SystemExit(2)


def add(session: Any, patches: dict[str, Callable[[ModuleType], None]]) -> None:
    """Add to ``patches`` what wraps this process, if it is a rank that is to be wrapped.

    The variable that says so is taken away: what the script starts is no rank.
    """
    workers, _, port = os.environ.pop(fmt.WRAP_VARIABLE, "").partition(" ")
    if not workers.isdigit() or int(workers) < 2:
        return
    wrapping = Wrapping(session, int(workers), port)
    patched: tuple[tuple[str, Any], ...] = (
        ("torch.optim.optimizer",
         lambda w, m: _after(m.Optimizer, "__init__", lambda self, *_: w.optimizer_made(self))),
        ("torch.autograd", lambda w, m: _after(m, "backward", lambda *_: w.backward_ended())),
        ("torch.utils.data.dataloader", _loader),
        ("torch.distributed.distributed_c10d", _process_group),
        ("torch.nn.parallel.distributed",
         lambda w, m: _after(m.DistributedDataParallel, "__init__", lambda *_: w.give_way())),
    )  # fmt: skip
    for name, patch in patched:
        before = patches.get(name)
        patches[name] = functools.partial(_both, before, functools.partial(patch, wrapping))


def _both(before: Any, patch: Any, module: Any) -> None:
    if before is not None:
        before(module)
    patch(module)


# These stay when the session lets go: a rank that goes on alone would train something else.


def _after(owner: Any, name: str, then: Any) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        then(*args)
        return result

    setattr(owner, name, both)


def _loader(wrapping: Wrapping, module: Any) -> None:
    _after(module.DataLoader, "__init__", lambda self, *_: wrapping.loader_made(self))
    original = module.DataLoader.__iter__

    @functools.wraps(original)
    def begin(self: Any) -> Any:
        wrapping.loader_begins(self)
        return original(self)

    module.DataLoader.__iter__ = begin


def _process_group(wrapping: Wrapping, module: Any) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        by_script = sys._getframe(1).f_globals.get("__name__") != __name__
        if by_script and wrapping._is_on():
            wrapping.leave_group()  # ours would be in the way
            wrapping.give_way()
        return original(*args, **kwargs)

    module.init_process_group = init_process_group
