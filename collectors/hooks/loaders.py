"""The data loaders of this process: samples that they deliver, and what those cost."""

from __future__ import annotations

import linecache
import os
import re
import sys
import time
import weakref
from itertools import islice

from . import format as fmt
from .run_delay import RunDelay, of_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .writer import Writer


class Loader:
    """Counts of one ``DataLoader``, cumulative over its iterators."""

    def __init__(self, number: int, loader: Any) -> None:
        self.number = number
        self.reference = weakref.ref(loader)
        self.iterator: Any = None  # a weak reference to the last one
        self.iterators = self.steps = self.batches = self.samples = 0
        self.inside_ns = self.inside_cpu_ns = 0
        self.batch_cpu_ns = self.batch_ns = 0
        self.has_tasks = False
        self.is_quick = False  # after a batch that took little time, made in this process
        self.workers_cpu_ns = self.workers_delay_ns = self.helpers_delay_ns = 0
        self.is_described = False
        self.samples_in: Any = samples_in  # counts those of a batch
        self.is_recorded = False
        # pid -> CPU time, waiting of the main thread and of the others, as counted so far
        self._alive: dict[int, tuple[int, int, int]] = {}

    @property
    def is_alive(self) -> bool:
        """Whether the loader, or an iterator that outlives it, may still deliver."""
        is_iterated = self.iterator is not None and self.iterator() is not None
        return is_iterated or self.reference() is not None

    def count_workers(self, iterator: Any) -> None:
        """Add what the worker processes computed, and waited for a core, since the last call."""
        for worker in getattr(iterator, "_workers", ()):
            pid = worker.pid
            try:
                now = time.clock_gettime_ns((~pid << 3) | 2)
            except (OSError, TypeError):  # gone, or not started
                continue
            delay, helpers = of_process(pid)
            cpu_before, delay_before, helpers_before = self._alive.get(pid, (-1, 0, 0))
            if cpu_before < 0:  # a spawned worker has imported the world; that is not loading
                cpu_before = now if _imports_at_start(iterator) else 0
            self.workers_cpu_ns += now - cpu_before
            self.workers_delay_ns += max(0, delay - delay_before)
            self.helpers_delay_ns += max(0, helpers - helpers_before)
            self._alive[pid] = now, delay, helpers

    def record(self, now_ns: int) -> bytes:
        """Return the counts as a payload."""
        self.is_recorded = True
        return fmt.LOADER_PAYLOAD.pack(
            now_ns, min(self.number, 0xFFFF), min(self.iterators, 0xFFFF), self.steps,
            self.batches, self.samples, self.inside_ns, self.inside_cpu_ns, self.workers_cpu_ns,
            self.workers_delay_ns, self.helpers_delay_ns,
        )  # fmt: skip


class Loaders:
    """All loaders of this process.

    Attributes
    ----------
    last : Loader or None
        The one that was fetched from last: a step that follows makes it the training loader.
    wait_ns, wait_delay_ns, batches, samples : int
        Since the last step: time inside loaders, what of it the main thread waited for a core.
    asks_cpu : bool
        Whether the next batch's CPU time and waiting are to be taken. That is a call into the
        kernel, unlike reading a clock: quick batches, whose cost it would add to, count as the
        last one measured.
    noted : list of (int, int, int, Loader)
        Batches that were only noted, while steps are: when each was there, the time inside the
        iterator [ns], its samples, its loader. To be counted by ``settle``.
    """

    _RECORD_NS = 1_000_000_000
    _QUICK_NS = 300_000
    _MEASURED = 8  # one quick batch in so many

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[int, Loader] = {}  # by id of the DataLoader
        self._made = 0
        self._next_record_ns = 0
        self.last: Loader | None = None
        self.delay = RunDelay()
        self.wait_ns = self.wait_delay_ns = self.batches = self.samples = 0
        self.has_begun = False
        self.asks_cpu = True
        self.noted: list[tuple[int, int, int, Loader]] = []
        self._begin_delay_ns = 0

    def begun(self, loader: Any, iterator: Any) -> None:
        """Note a new iterator over ``loader``."""
        known = self._known.get(id(loader))
        if known is None or known.reference() is not loader:
            self._forget_dead()
            known = self._known[id(loader)] = Loader(self._made, loader)
            self._made += 1
            self._writer.fact("loader", loader=known.number, **_facts(loader))
        known.iterators += 1
        known.is_recorded = False
        known.iterator = weakref.ref(iterator)
        known.has_tasks = hasattr(iterator, "_tasks_outstanding")
        iterator._advisor_loader = known  # iterators are neither copied nor pickled
        self.has_begun = True

    def measure(self) -> int:
        """Begin to measure a batch: return the CPU time, and keep the waiting, before it."""
        self._begin_delay_ns = self.delay.main_ns()
        return time.thread_time_ns()

    def fetched(self, iterator: Any, batch: Any, begin_ns: int, cpu_ns: int) -> None:
        """Note one batch.

        ``begin_ns`` is the clock before it was asked for, ``cpu_ns`` what ``measure`` said, -1
        where it was not asked.
        """
        if cpu_ns >= 0:
            # Between the clock's two readings: what is waited before and after is no batch's.
            cpu_ns, delay_ns = time.thread_time_ns() - cpu_ns, self._waited(self._begin_delay_ns)
        now_ns = time.monotonic_ns()
        known = getattr(iterator, "_advisor_loader", None)
        if known is None:
            loader = getattr(iterator, "_advisor_of", lambda: None)()
            if loader is None:
                return
            self.begun(loader, iterator)
            known = iterator._advisor_loader
        if not known.is_described:
            known.is_described = True
            known.samples_in = _counting(batch, known.reference())
            facts = _batch_facts(batch, known.samples_in(batch))
            self._writer.fact("batch", loader=known.number, **facts)
        samples = known.samples_in(batch)
        known.is_recorded = False
        known.batches += 1
        known.samples += samples
        took_ns = now_ns - begin_ns
        known.inside_ns += took_ns
        if cpu_ns >= 0:
            known.batch_cpu_ns = cpu_ns
            known.batch_ns = max(0, took_ns - delay_ns)
            self.wait_delay_ns += took_ns - known.batch_ns
        elif took_ns > 2 * known.batch_ns + self._QUICK_NS:
            # Much longer than it was: of that no more can be waiting than there was since the
            # waiting was last read, a short while ago.
            self.wait_delay_ns += min(self._waited(self.delay.latest_ns), took_ns - known.batch_ns)
        known.inside_cpu_ns += known.batch_cpu_ns
        known.is_quick = took_ns <= self._QUICK_NS and not known.has_tasks
        self.asks_cpu = took_ns > self._QUICK_NS or known.batches % self._MEASURED == 0
        self.last = known
        self.wait_ns += took_ns
        self.batches += 1
        self.samples += samples
        is_last = known.has_tasks and iterator._tasks_outstanding == 0
        if is_last or now_ns >= self._next_record_ns:
            known.count_workers(iterator)
            self._writer.write(fmt.LOADER, known.record(now_ns))
            self._next_record_ns = now_ns + self._RECORD_NS

    def note(self, iterator: Any, batch: Any, begin_ns: int) -> bool:
        """Note a quick batch, to be counted by ``settle``; False if it has to be counted now."""
        try:
            known = iterator._advisor_loader
            if not known.is_quick:
                return False
            now_ns = time.monotonic_ns()
            if now_ns - begin_ns > self._QUICK_NS:
                return False
            self.noted.append((now_ns, now_ns - begin_ns, known.samples_in(batch), known))
        except Exception:  # not begun under our eyes, or a batch of the script's own making
            return False
        return True

    def settle(self) -> list[tuple[int, int, int, Loader]]:
        """Count the batches that were only noted, for their loaders, and return them."""
        noted = self.noted[:]
        if noted:
            del self.noted[: len(noted)]  # threads append to it meanwhile
            self.asks_cpu = True
        for _, took_ns, samples, known in noted:
            known.is_recorded = False
            known.batches += 1
            known.samples += samples
            known.inside_ns += took_ns
            known.inside_cpu_ns += known.batch_cpu_ns
        return noted

    def carry(self, noted: list[tuple[int, int, int, Loader]]) -> None:
        """Count settled batches for the step that is under way."""
        for _, took_ns, samples, known in noted:
            self.wait_ns += took_ns
            self.batches += 1
            self.samples += samples
            self.last = known

    def tick(self, completes: bool) -> None:
        """Begin new counts after a tick; a whole step is the last fetched loader's."""
        self.wait_ns = self.wait_delay_ns = self.batches = self.samples = 0
        self.has_begun = False
        if completes and self.last is not None:
            self.last.steps += 1
            self.last.is_recorded = False

    def _waited(self, before_ns: int) -> int:
        return max(0, self.delay.main_ns() - before_ns)

    def start_counting(self) -> None:
        """Begin anew: from now on another clock says what a step is."""
        for known in self._known.values():
            known.steps = known.batches = known.samples = 0
            known.inside_ns = known.inside_cpu_ns = known.workers_cpu_ns = 0
            known.is_recorded = False

    def flush(self) -> None:
        """Write the counts of every loader that has new ones, its workers' with them.

        A recording of a few steps ends within the first second: what was not counted would be
        waiting, which neighbours of the laptop lengthen.
        """
        now_ns = time.monotonic_ns()
        for known in list(self._known.values()):
            if not known.is_recorded:
                known.count_workers(known.iterator and known.iterator())
                self._writer.write(fmt.LOADER, known.record(now_ns))

    def _forget_dead(self) -> None:
        """Let go of loaders that the script has let go of: some make one for every epoch."""
        self.flush()
        self._known = {key: known for key, known in self._known.items() if known.is_alive}


def _imports_at_start(iterator: Any) -> bool:
    context = getattr(iterator, "_multiprocessing_context", None)
    if context is None:
        import multiprocessing

        context = multiprocessing
    return bool(context.get_start_method() != "fork")


def _facts(loader: Any) -> dict[str, Any]:
    return {
        "batch": _batch_size(loader),
        "dataset_samples": length_of(getattr(loader, "dataset", None)),
        "batches_per_epoch": length_of(loader),
        "workers": getattr(loader, "num_workers", 0),
        "drop_last": bool(getattr(loader, "drop_last", False)),
        "pin_memory": bool(
            getattr(loader, "_advisor_pins", False) or getattr(loader, "pin_memory", False)
        ),
        "non_blocking": _copies_are_queued(),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "dataset": type(getattr(loader, "dataset", None)).__name__,
        "sampler": type(getattr(loader, "sampler", None)).__name__,
    }


_QUEUED = re.compile(r"\bnon_blocking\s*=\s*True\b")
_QUEUE_BY_THEMSELVES = ("lightning", "pytorch_lightning")


def _copies_are_queued() -> bool:
    """Return whether the script, or a module beside it, copies with ``non_blocking=True``.

    A processor copies nothing to itself: only the source says what will be done on a GPU.
    """
    if any(name in sys.modules for name in _QUEUE_BY_THEMSELVES):
        return True
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return False
    folder = os.path.dirname(os.path.abspath(main)) + os.sep
    files = {getattr(one, "__file__", None) or "" for one in list(sys.modules.values())}
    beside = [one for one in files if one.startswith(folder) and one.endswith(".py")]
    return any(_QUEUED.search("".join(linecache.getlines(one))) for one in {main, *beside[:50]})


def length_of(sized: Any) -> int | None:
    """Return the length of something that may have none."""
    try:
        return len(sized)
    except Exception:  # an iterable dataset has none; somebody's __len__ may raise anything
        return None


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "element_size") and hasattr(value, "shape"):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "values") and hasattr(value, "keys"):
        for item in value.values():
            yield from _tensors(item)


def _batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _counting(batch: Any, loader: Any) -> Callable[[Any], int]:
    """Return what counts the samples of a loader's batches, by a whole one.

    Usually it is the first dimension of the first tensor. Where the loader's batch is another, it
    is the second one (time comes first, [time, batch, ...]), or another tensor's, or a list's.
    """
    size, shapes = _batch_size(loader), [tensor.shape for tensor in _tensors(batch)]
    if size is None or not shapes or samples_in(batch) == size:
        return samples_in
    if all(len(shape) > 1 and shape[1] == size for shape in shapes):
        return lambda batch: samples_in(batch, 1)
    for at, shape in enumerate(shapes):
        if len(shape) and shape[0] == size:
            return lambda batch, at=at: next(islice(_tensors(batch), at, None)).shape[0]  # type: ignore[misc]
    lists = [batch, *batch] if isinstance(batch, (list, tuple)) else []
    for at, one in enumerate(lists):
        if isinstance(one, (list, tuple)) and len(one) == size:
            return lambda batch, at=at: len(batch[at - 1] if at else batch)  # type: ignore[misc]
    return samples_in


def samples_in(batch: Any, axis: int = 0) -> int:
    """Return the samples in a batch; nearly always it is a list that begins with a tensor."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    shape = getattr(first, "shape", None)
    return int(shape[axis]) if shape else _leading_size(batch, axis)


# Many graphs in one, or the nodes of one that neighbours were drawn for: PyTorch Geometric's.
_GRAPHS = ("num_graphs", "batch_size")


def _leading_size(batch: Any, axis: int = 0) -> int:
    for name in _GRAPHS:
        count = getattr(batch, name, None)
        if type(count) is int and count > 0:
            return count
    for tensor in _tensors(batch):
        return int(tensor.shape[axis]) if len(tensor.shape) else 1
    return 0


def _batch_facts(batch: Any, samples: int) -> dict[str, Any]:
    tensors = list(_tensors(batch))
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return {
        "sample_bytes": total / samples if samples else None,
        "shapes": [list(tensor.shape) for tensor in tensors[:8]],
        "dtypes": [str(tensor.dtype) for tensor in tensors[:8]],
    }
