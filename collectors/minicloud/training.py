"""The training loops: one process; a master and workers; workers that all-reduce.

All end after the steps that the job declares. A loop's time is from the first batch asked for to
the last parameter updated; building the model and meeting the other nodes come before it.

Parameter server, synchronous: each worker sends its gradient (S bytes), the master averages,
updates and sends the parameters back: 2 W S bytes through the master's link each step.
All-reduce: DistributedDataParallel over gloo, a ring: 2 (W - 1) / W x S bytes through every
link, each way.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader

from advisor.collectors.minicloud.tape import Tape
from advisor.collectors.workloads import Workload

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
        """Build the model from seed 0, so that all nodes agree, and batches from ``seed``."""
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
        """Begin the loop."""
        self._delay_s = self._read_delay_s()
        self._cpu_s = time.process_time()
        self._began_s = time.monotonic()
        self.tape.begin(self._began_s)

    def tick(self) -> None:
        """Note the end of a step."""
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
