"""Ranks of a script without a process group, made to train together: ``profile --workers N``.

Every rank runs the script unchanged. What ``DistributedDataParallel`` and ``DistributedSampler``
would do is done around it:

- parameters begin as rank 0's, when the first loader begins after an optimizer was made;
- a loader that shuffles delivers the rank's share of the data, in an order that all agree on;
- after each backward pass the gradients that it made are averaged over the ranks, and buffers
  (running statistics) become rank 0's.

Averaging after a pass is right for any number of optimizers, clipping, loss scaling and
accumulation: a sum of averages is the average of the sums. It is not overlapped with the pass,
so the waiting is what DDP would take at most. A script that joins a process group itself, or
makes a ``DistributedDataParallel``, is left to itself.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import format as fmt
from .frameworks.rounds import replace, then

_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's own default


def unpack(flat: Any, tensors: list[Any]) -> None:
    """Copy what was exchanged in one piece back into the tensors that it was made of."""
    for tensor, part in zip(tensors, flat.split([one.numel() for one in tensors])):
        tensor.copy_(part.view_as(tensor))


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
         lambda w, m: _after(m.Optimizer, "__init__", lambda _, own, *__: w.optimizer_made(own))),
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
_after = functools.partial(then, None)


def _loader(wrapping: Wrapping, module: Any) -> None:
    _after(module.DataLoader, "__init__", lambda _, own, *__: wrapping.loader_made(own))
    original = module.DataLoader.__iter__

    def begin(self: Any) -> Any:
        wrapping.loader_begins(self)
        return original(self)

    replace(None, module.DataLoader, "__iter__", begin)


def _process_group(wrapping: Wrapping, module: Any) -> None:
    original = module.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        by_script = sys._getframe(1).f_globals.get("__name__") != __name__
        if by_script and wrapping._is_on():
            wrapping.leave_group()  # ours would be in the way
            wrapping.give_way()
        return original(*args, **kwargs)

    replace(None, module, "init_process_group", init_process_group)
