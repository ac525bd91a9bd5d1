"""Who waited for a core, as hooks and sampler see it: with fake clocks, then real neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import record

from advisor.collectors.format.recording import Recording
from advisor.collectors.hooks import loaders
from advisor.collectors.hooks.loaders import Loaders
from advisor.collectors.hooks.run_delay import of_process
from advisor.collectors.hooks.writer import Writer

US = 1000


class Time:
    """A clock and a main thread's waiting that pass as they are told."""

    def __init__(self) -> None:
        self.now = self.waited = self.latest_ns = self.reads = 0

    def monotonic_ns(self) -> int:
        return self.now

    def thread_time_ns(self) -> int:
        return self.now - self.waited

    def main_ns(self) -> int:
        self.reads += 1
        self.latest_ns = self.waited
        return self.waited

    def passes(self, own_us: int, waits_us: int = 0) -> None:
        self.now += (own_us + waits_us) * US
        self.waited += waits_us * US


class Batches:
    """An iterator of a loader in this process."""


@pytest.fixture
def fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Loaders, Time, Batches]:
    fake = Time()
    monkeypatch.setattr(loaders, "time", fake)
    seen = Loaders(Writer(str(tmp_path)))
    seen.delay = fake  # type: ignore[assignment]
    iterator = Batches()
    seen.begun(Batches(), iterator)
    return seen, fake, iterator


def fetch(seen: Loaders, fake: Time, iterator: Batches, own_us: int, waits_us: int = 0) -> None:
    """Ask for a batch as the patch of ``DataLoader`` does."""
    begin_ns = fake.monotonic_ns()
    cpu_ns = seen.measure() if seen.asks_cpu else -1
    fake.passes(own_us, waits_us)
    seen.fetched(iterator, [], begin_ns, cpu_ns)


def test_a_slow_batch_knows_what_it_waited(fetching: tuple[Loaders, Time, Batches]) -> None:
    seen, fake, iterator = fetching
    for own_us, waits_us in ((5000, 0), (5000, 70_000), (9000, 400)):
        fake.passes(1000, 30_000)  # the step between
        fetch(seen, fake, iterator, own_us, waits_us)
        assert (seen.wait_ns, seen.wait_delay_ns) == ((own_us + waits_us) * US, waits_us * US)
        seen.tick(completes=True)
        assert seen.wait_delay_ns == 0


def test_a_quick_batch_is_measured_seldom_and_its_one_long_wait_is_not_missed(
    fetching: tuple[Loaders, Time, Batches],
) -> None:
    seen, fake, iterator = fetching
    for _ in range(64):
        fetch(seen, fake, iterator, 20)
        seen.tick(completes=True)
    assert fake.reads <= 2 * (1 + 64 // 8)
    while seen.asks_cpu:
        fetch(seen, fake, iterator, 20)
    seen.tick(completes=True)
    fake.passes(100, 300)
    fake.main_ns()  # the waiting is read at the end of the step
    fetch(seen, fake, iterator, 20, 9000)
    assert seen.wait_delay_ns == 9000 * US


def test_a_batch_that_takes_long_by_itself_has_not_waited(
    fetching: tuple[Loaders, Time, Batches],
) -> None:
    seen, fake, iterator = fetching
    fetch(seen, fake, iterator, 20)
    while seen.asks_cpu:
        fetch(seen, fake, iterator, 20)
    seen.tick(completes=True)
    fetch(seen, fake, iterator, 9000)
    assert (seen.wait_ns, seen.wait_delay_ns) == (9000 * US, 0)


def test_another_process_says_what_each_kind_of_its_threads_waited() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        main, others = of_process(child.pid)
        assert main >= 0
        assert others == 0  # it has one thread
    finally:
        child.communicate(b"\n")
    assert of_process(child.pid) == (0, 0)


BURN = "while True: pass"
# Its loader does most of the work.
TRAIN = """
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
class Images(Dataset):
    def __len__(self):
        return 480
    def __getitem__(self, index):
        image = torch.full((64, 64), float(index))
        for _ in range(24):
            image = (image - image.mean()) / (image.std() + 1)
        return image
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4096, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for image in DataLoader(Images(), batch_size=8):
    optimizer.zero_grad()
    model(image).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def neighbours() -> Iterator[None]:
    """Two on the one core that the program has too, so that it is they who decide the pace."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    burning = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(2)]
    try:
        yield
    finally:
        for one in burning:
            one.kill()
            one.wait()
        os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("neighbours")
def test_beside_neighbours_a_loop_does_not_only_wait_for_its_data(tmp_path: Path) -> None:
    seen = record(tmp_path, TRAIN)
    assert seen.step_time is not None
    assert seen.loading is not None
    assert seen.loading.cpu_s_per_sample is not None
    # The loader runs in the loop: what it spends is its processor time, whatever the clock says.
    # Of that a few fetches are known: beside a dozen others one takes twice what the next does.
    spent_s = 8 * seen.loading.cpu_s_per_sample
    assert 0.4 * spent_s < seen.loading.wait_s < 1.4 * spent_s
    assert seen.loading.raw_wait_s > 1.3 * seen.loading.wait_s
    assert 0 < seen.loading.wait_s < seen.step_time.corrected_s < seen.step_time.raw_s
    assert seen.startup_s is not None
    assert seen.startup_raw_s is not None
    assert seen.startup_raw_s > 1.3 * seen.startup_s
    _adds_up(seen)


@pytest.mark.usefixtures("neighbours")
def test_beside_neighbours_a_program_takes_its_processor_time(tmp_path: Path) -> None:
    seen = record(tmp_path, "sum(i * i for i in range(10_000_000))")
    assert seen.busy_s is not None
    half_s = seen.contention_half_width * seen.busy_s
    assert abs(seen.busy_s - seen.readings[-1].cpu_s) <= half_s + 0.3 * seen.busy_s
    assert seen.duration_s > 1.3 * seen.busy_s
    _adds_up(seen)


def _adds_up(seen: Recording) -> None:
    assert seen.busy_s is not None
    assert 0 < seen.busy_s <= seen.duration_s
    assert seen.contention == pytest.approx(1.0 - seen.busy_s / seen.duration_s)


def test_the_whole_machine_has_computed_at_least_what_this_process_has() -> None:
    from advisor.collectors.watch.sampler import busy_ns

    before_ns = busy_ns(Path("/proc/stat").read_bytes())
    begin_ns = time.process_time_ns()
    while time.process_time_ns() - begin_ns < 200_000_000:
        pass
    # The kernel counts ticks of 10 ms.
    assert busy_ns(Path("/proc/stat").read_bytes()) - before_ns > 150_000_000
