"""One forked process of a run: take on the limits, train, report, and never return.

The parent has torch and the data loaded and has opened no thread pool, so that a fork is a fresh
trainer within milliseconds; limits, namespace and thread pool are the child's alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from advisor.collectors.minicloud import counting, limits, training
from advisor.collectors.minicloud.instances import MiniInstance
from advisor.collectors.minicloud.plan import MiniRun
from advisor.collectors.minicloud.tape import Tape
from advisor.collectors.network import INTERFACE, Nodes
from advisor.collectors.workloads import load

_PR_SET_PDEATHSIG = 1  # prctl(2)
_OUT_OF_MEMORY = ("memory", "bad_alloc", "primitive")  # torch, C++, oneDNN


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node's place in a run.

    Attributes
    ----------
    group : CpuGroup or None
        None where cgroups are refused and the instance type needs none.
    """

    rank: int
    cores: tuple[int, ...]
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
    trainee = training.Trainee.build(
        load(job.workload), width=job.width, batch=job.batch,
        seed=1000 * run.replicate + seat.rank + 1,
    )  # fmt: skip
    if run.layout.kind != "single":
        _meet(run, seat)
    clock = training.StepClock(seat.tape, partial_cpu_s=run.scale.partial_cpu_s)
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


def _loop(run: MiniRun, *, is_server: bool) -> training.Loop:
    if run.layout.kind == "single":
        return training.train_alone
    if run.layout.kind == "allreduce":
        return training.train_together
    return training.serve_parameters if is_server else training.work_for_server


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


def _counts(trainee: training.Trainee) -> dict[str, Any]:
    batch = trainee.next_batch()
    return counting.count_step(
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
