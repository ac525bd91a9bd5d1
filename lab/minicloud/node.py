"""One forked process of a run: take on the limits, train, report, and never return.

The parent has torch and the data loaded and has opened no thread pool, so that a fork is a fresh
trainer within milliseconds; limits, namespace and thread pool are the child's alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.flop_counter import flop_registry

from advisor.collectors.watch.network import INTERFACE, Nodes
from advisor.lab.minicloud import limits
from advisor.lab.minicloud.plan import MiniInstance, MiniRun
from advisor.lab.minicloud.tape import Tape
from advisor.lab.workloads import Workload, load

# Counts of one training step: operators, floating-point operations, bytes, kept activations.
#
# A dispatch mode of our own sees every operator of one real step, forward, backward and optimizer.
# Operations come from torch's formulas, except where those are wrong in torch 2.13: LSTM on CPU
# (counted as nothing) and the backward pass of grouped convolutions (groups forgotten).
#
#     here    meaning
#     flop    2 x multiply-adds of matrix products, convolutions, attention and recurrences [flop]
#     bytes   operands read plus results written, views not counted [bytes]
#     saved   storages kept from forward to backward, parameters not counted [bytes]


# Fragment of an operator's name -> its class, first match wins.
CLASSES: Final[tuple[tuple[str, str], ...]] = (
    ("attention", "attention"), ("rnn", "recurrent"), ("lstm", "recurrent"),
    ("convolution", "convolution"), ("mm", "matmul"), ("matmul", "matmul"),
    ("embedding", "embedding"), ("index", "embedding"), ("gather", "embedding"),
    ("norm", "normalisation"), ("sum", "reduction"), ("mean", "reduction"),
    ("softmax", "reduction"), ("nll", "reduction"), ("mse", "reduction"), ("pool", "reduction"),
    ("copy", "copy"), ("clone", "copy"), ("cat", "copy"), ("stack", "copy"), ("split", "copy"),
)  # fmt: skip


def operator_class(name: str) -> str:
    """Return the class of an operator by its name, ``"elementwise"`` where nothing else fits."""
    return next((kind for part, kind in CLASSES if part in name), "elementwise")


class StepCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what passes through; set ``phase`` before each part of the step."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.counts: dict[tuple[str, str], list[float]] = {}
        self.saved: dict[int, int] = {}
        self._parameters = {p.untyped_storage().data_ptr() for p in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not _is_view(func):
            name = func._schema.name.removeprefix("aten::")
            key = (self.phase, operator_class(name))
            entry = self.counts.setdefault(key, [0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += _flop(func, args, kwargs, out)
            entry[2] += sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if _has_bytes(t))
        return out

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor saved for backward; the pack hook of ``saved_tensors_hooks``."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self.saved[storage.data_ptr()] = storage.nbytes()
        return tensor


def count_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]
) -> dict[str, Any]:
    """Run one real step and return its counts.

    Returns
    -------
    dict
        ``operators``, ``flop``, ``bytes``, ``saved_bytes``, ``parameters``, ``parameter_bytes``,
        ``buffer_bytes``, ``optimizer_state_bytes``, and ``classes``: phase -> class ->
        [operators, flop, bytes].
    """
    parameters = list(model.parameters())
    count = StepCount(parameters)
    hooks = torch.autograd.graph.saved_tensors_hooks(count.keep, lambda tensor: tensor)
    with count:
        optimizer.zero_grad()
        with hooks:
            value = loss()
        count.phase = "backward"
        value.backward()  # type: ignore[no-untyped-call]
        count.phase = "optimizer"
        optimizer.step()
    classes: dict[str, dict[str, list[float]]] = {}
    for (phase, kind), entry in sorted(count.counts.items()):
        classes.setdefault(phase, {})[kind] = entry
    states = tree_leaves([optimizer.state[p] for p in parameters])
    return {
        "operators": sum(entry[0] for entry in count.counts.values()),
        "flop": sum(entry[1] for entry in count.counts.values()),
        "bytes": sum(entry[2] for entry in count.counts.values()),
        "saved_bytes": sum(count.saved.values()),
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "buffer_bytes": sum(b.nbytes for b in model.buffers()),
        "optimizer_state_bytes": sum(s.nbytes for s in states if _has_bytes(s)),
        "classes": classes,
    }


def _has_bytes(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _flop(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    own = _OWN_FORMULAS.get(func._schema.name)
    if own is not None:
        return own(args)
    formula = flop_registry.get(func.overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def _convolution_backward(args: Any) -> float:
    """2 x outputs x inputs per output, once for each gradient that is asked for."""
    gradient, _, weight, _, _, _, _, is_transposed, _, _, wanted = args[:11]
    spread = args[1].numel() if is_transposed else gradient.numel()
    return float(2 * spread * math.prod(weight.shape[1:]) * (wanted[0] + wanted[1]))


def _lstm_forward(args: Any) -> float:
    """2 x positions x 4 gates x hidden x (inputs + hidden); weights are (4 hidden, inputs)."""
    inputs, input_weight, hidden_weight = args[0], args[1], args[2]
    positions = math.prod(inputs.shape[:-1])
    return float(2 * positions * (input_weight.numel() + hidden_weight.numel()))


def _lstm_backward(args: Any) -> float:
    """Twice the forward pass: gradients of the inputs and of the weights."""
    return 2.0 * _lstm_forward(args)


_OWN_FORMULAS: Final[dict[str, Callable[[Any], float]]] = {
    "aten::convolution_backward": _convolution_backward,
    "aten::mkldnn_rnn_layer": _lstm_forward,
    "aten::mkldnn_rnn_layer_backward": _lstm_backward,
}


# The training loops: one process; a master and workers; workers that all-reduce.
#
# All end after the steps that the job declares. A loop's time is from the first batch asked for to
# the last parameter updated; building the model and meeting the other nodes come before it.
#
# Parameter server, synchronous: each worker sends its gradient (S bytes), the master averages,
# updates and sends the parameters back: 2 W S bytes through the master's link each step.
# All-reduce: DistributedDataParallel over gloo, a ring: 2 (W - 1) / W x S bytes through every
# link, each way.


PARTIAL_STEPS = 12  # least steps of a partial run


@dataclass(slots=True, kw_only=True)
class Trainee:
    """A workload in training: model, optimizer, endless batches, and what was noted on the way.

    ``loading_s`` and ``communication_s`` are wall time inside the loop; ``losses`` one a step.
    """

    workload: Workload
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[Any]
    losses: list[float] = field(default_factory=list)
    loading_s: float = 0.0
    communication_s: float = 0.0

    @classmethod
    def build(cls, workload: Workload, *, width: int, batch: int, seed: int) -> Trainee:
        torch.manual_seed(0)
        model = workload.build(width)
        torch.manual_seed(seed)
        loader = DataLoader(
            workload.samples(),
            batch_size=batch,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(seed),
        )
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        optimizer = workload.optimizer(model.parameters())
        return cls(workload=workload, model=model, optimizer=optimizer, batches=batches)

    def next_batch(self) -> Any:
        """Return the next batch, its wait noted."""
        began = time.perf_counter()
        batch = next(self.batches)
        self.loading_s += time.perf_counter() - began
        return batch

    def backward(self) -> None:
        """Compute the gradients of the next batch."""
        batch = self.next_batch()
        self.optimizer.zero_grad()
        value = self.workload.loss(self.model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        self.losses.append(float(value.detach()))


class StepClock:
    """The steps' clock: wall time since ``start`` and the main thread's wait for a core."""

    def __init__(self, tape: Tape, *, partial_cpu_s: float) -> None:
        self.tape = tape
        self.partial_cpu_s = partial_cpu_s
        self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY)
        self._delay_s = self._began_s = self._cpu_s = 0.0

    def start(self) -> None:
        self._delay_s = self._read_delay_s()
        self._cpu_s = time.process_time()
        self._began_s = time.monotonic()
        self.tape.begin(self._began_s)

    def tick(self) -> None:
        self.tape.write(self.wall_s, self.delay_s)

    @property
    def wall_s(self) -> float:
        """Time since ``start`` [s]."""
        return time.monotonic() - self._began_s

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads since ``start`` [s]."""
        return time.process_time() - self._cpu_s

    @property
    def delay_s(self) -> float:
        """Time that the main thread has waited for a core, throttling included [s]."""
        return self._read_delay_s() - self._delay_s

    def _read_delay_s(self) -> float:
        return int(os.pread(self._schedstat, 80, 0).split()[1]) / 1e9


class Loop(Protocol):
    """A training loop on one node."""

    def __call__(self, trainee: Trainee, clock: StepClock, steps: int | None) -> None:
        """Train for ``steps``, or partly where it is None."""


def train_alone(trainee: Trainee, clock: StepClock, steps: int | None) -> None:
    """Train in one process."""
    clock.start()
    for done in itertools.count(1):
        trainee.backward()
        trainee.optimizer.step()
        clock.tick()
        if done == steps or (
            steps is None and done >= PARTIAL_STEPS and clock.cpu_s >= clock.partial_cpu_s
        ):
            return


def serve_parameters(trainee: Trainee, clock: StepClock, steps: int | None) -> None:
    """Be the master: average the workers' gradients, update, hand the parameters out."""
    steps = PARTIAL_STEPS if steps is None else steps
    parameters = list(trainee.model.parameters())
    vector = parameters_to_vector(parameters).detach()
    workers = range(1, dist.get_world_size())
    gradients = [torch.empty_like(vector) for _ in workers]
    dist.barrier()
    clock.start()
    for _ in range(steps):
        began = time.perf_counter()
        _wait([dist.irecv(g, src=w) for w, g in zip(workers, gradients, strict=True)])
        trainee.communication_s += time.perf_counter() - began
        mean = torch.stack(gradients).mean(dim=0)
        parts = torch.split(mean, [p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.view_as(p)
        trainee.optimizer.step()
        vector = parameters_to_vector(parameters).detach()
        began = time.perf_counter()
        _wait([dist.isend(vector, dst=w) for w in workers])
        trainee.communication_s += time.perf_counter() - began
        clock.tick()


def work_for_server(trainee: Trainee, clock: StepClock, steps: int | None) -> None:
    """Be a worker: compute a gradient, send it to the master, take the new parameters."""
    steps = PARTIAL_STEPS if steps is None else steps
    parameters = list(trainee.model.parameters())
    vector = parameters_to_vector(parameters).detach()
    dist.barrier()
    clock.start()
    for _ in range(steps):
        trainee.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        gradient = torch.cat([g.reshape(-1) for g in gradients])
        began = time.perf_counter()
        dist.send(gradient, dst=0)
        dist.recv(vector, src=0)
        trainee.communication_s += time.perf_counter() - began
        vector_to_parameters(vector, parameters)
        clock.tick()


def train_together(trainee: Trainee, clock: StepClock, steps: int | None) -> None:
    """Be one of the equal workers of DistributedDataParallel."""
    steps = PARTIAL_STEPS if steps is None else steps
    trainee.model = wrapped = DistributedDataParallel(trainee.model)
    dist.barrier()
    clock.start()
    for _ in range(steps):
        trainee.backward()
        trainee.optimizer.step()
        clock.tick()
    log: dict[str, float] = wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    trainee.communication_s = float(log.get("avg_backward_comm_time", 0)) / 1e9 * steps


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.wait()


_PR_SET_PDEATHSIG = 1  # prctl(2)
_OUT_OF_MEMORY = ("memory", "bad_alloc", "primitive")  # torch, C++, oneDNN


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node's place in a run."""

    rank: int
    cores: tuple[int, ...]
    # none where cgroups are refused and the instance type needs none
    group: limits.CpuGroup | None
    network: Nodes | None
    port: int
    tape: Tape


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node says of its own loop; times in seconds.

    ``delay_s`` is the longest wait for a core of any of its threads, throttling included.
    ``loss_first`` and ``loss_last`` are means over the first and last tenth of the steps.
    """

    status: Literal["ok", "failed", "oom"]
    error: str = ""
    setup_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    delay_s: float = 0.0
    throttled_s: float = 0.0
    loading_s: float = 0.0
    communication_s: float = 0.0
    loss_first: float | None = None
    loss_last: float | None = None
    counts: dict[str, Any] | None = None


def fork(run: MiniRun, seat: Seat, steps: int | None) -> tuple[int, int]:
    """Start a node; return its process id and the pipe that its report comes through."""
    gc.collect()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    return _live(run, seat, steps, writing)


def read_report(pipe: int) -> NodeReport | None:
    """Return the report of a node that has ended, or None where it died without one."""
    with os.fdopen(pipe, "rb") as stream:
        text = stream.read()
    try:
        return NodeReport(**json.loads(text))
    except ValueError:
        return None


def _live(run: MiniRun, seat: Seat, steps: int | None, writing: int) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # do not outlive the collector
        report = _train(run, seat, steps)
    except BaseException as error:
        report = _excuse(run.instance, error)
    with contextlib.suppress(BaseException):
        os.write(writing, json.dumps(asdict(report)).encode())
        sys.stderr.flush()
    os._exit(0)


def _excuse(instance: MiniInstance, error: BaseException) -> NodeReport:
    text = f"{type(error).__name__}: {error}"
    is_memory = isinstance(error, MemoryError) or (
        instance.memory_headroom_bytes is not None
        and any(part in text.lower() for part in _OUT_OF_MEMORY)
    )
    if os.environ.get("ADVISOR_DEBUG"):
        traceback.print_exception(error)
    return NodeReport(status="oom" if is_memory else "failed", error=text[:300])


def _train(run: MiniRun, seat: Seat, steps: int | None) -> NodeReport:
    began = time.monotonic()
    if seat.network is not None:
        seat.network.enter(seat.rank)
    if seat.group is not None:
        seat.group.join()
    limits.apply(run.instance, seat.cores)
    torch.set_num_threads(run.instance.threads)
    job, is_server = run.job, run.layout.kind == "parameter-server" and seat.rank == 0
    trainee = Trainee.build(
        load(job.workload), width=job.width, batch=job.batch,
        seed=1000 * run.replicate + seat.rank + 1,
    )  # fmt: skip
    if run.layout.kind != "single":
        _meet(run, seat)
    clock = StepClock(seat.tape, partial_cpu_s=run.scale.partial_cpu_s)
    setup_s = time.monotonic() - began
    throttled_s = seat.group.throttled_s() if seat.group else 0.0
    _loop(run, is_server=is_server)(trainee, clock, steps)
    report = NodeReport(
        status="ok",
        setup_s=setup_s,
        wall_s=clock.wall_s,
        cpu_s=clock.cpu_s,
        delay_s=max(clock.delay_s, *_pool_delays_s()),
        throttled_s=(seat.group.throttled_s() if seat.group else 0.0) - throttled_s,
        loading_s=trainee.loading_s,
        communication_s=trainee.communication_s,
        loss_first=_mean_of_tenth(trainee.losses),
        loss_last=_mean_of_tenth(trainee.losses[::-1]),
        counts=_counts(trainee) if run.kind == "partial" and not is_server else None,
    )
    if run.layout.kind != "single":
        with contextlib.suppress(RuntimeError):  # another node may be gone already
            dist.barrier()
    return report


def _loop(run: MiniRun, *, is_server: bool) -> Loop:
    if run.layout.kind == "single":
        return train_alone
    if run.layout.kind == "allreduce":
        return train_together
    return serve_parameters if is_server else work_for_server


def _meet(run: MiniRun, seat: Seat) -> None:
    """Join the run's process group over the seat's network."""
    address = "127.0.0.1"
    if seat.network is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
        address = seat.network.address(0)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:{seat.port}", rank=seat.rank,
        world_size=run.layout.nodes, timeout=timedelta(seconds=60),
    )  # fmt: skip


def _counts(trainee: Trainee) -> dict[str, Any]:
    batch = trainee.next_batch()
    return count_step(
        trainee.model, trainee.optimizer, lambda: trainee.workload.loss(trainee.model, batch)
    )


def _pool_delays_s() -> list[float]:
    """Return the wait for a core of every thread but the main one since it was born [s]."""
    delays = [0.0]
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():
            with contextlib.suppress(OSError):
                delays.append(int((task / "schedstat").read_text().split()[1]) / 1e9)
    return delays


def _mean_of_tenth(losses: list[float]) -> float | None:
    if not losses:
        return None
    mean = float(np.mean(losses[: max(1, len(losses) // 10)]))
    return round(mean, 6) if np.isfinite(mean) else None
