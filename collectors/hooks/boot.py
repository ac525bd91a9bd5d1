"""The start of the hooks in a Python process: they wait for the modules worth hooking.

Nothing is imported early: a finder in front of the others lets the script's own import happen and
patches the module right after it. A script that never imports torch is left as it is.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

from . import ending, state
from . import format as fmt
from .announced import Announced
from .frameworks import rounds
from .frameworks.rounds import replace
from .wants import Wants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from .session import Session


_sessions: list[Any] = []

# Who imports these is going to make steps: the profiler waits for the first of them.
_STEPS_TO_COME = ("torch", "jax", "keras", "advisor.collectors.marker")


def start(folder: str) -> Any:
    """Open this process's part of the recording in ``folder`` and return it; once per process."""
    if _sessions:
        return _sessions[0]
    from .session import Session

    Wants.begin_at_once()
    session = Session(folder)
    _sessions.append(session)
    ending.watch(session)
    session.writer.hello()  # the profiler is to know of a rehearsal before its shim is compiled
    session.rehearse(_rehearsal(session))
    if session.rehearsal is None:
        session.wants = Wants.watch(session)
    waiting = dict(of(session))
    if session.rehearsal is not None:
        waiting.update(session.rehearsal.changed())
    for name in [name for name in waiting if name in sys.modules]:
        _guarded(waiting.pop(name), session)(sys.modules[name])
    guarded = {name: _guarded(patch, session) for name, patch in waiting.items()}
    sys.meta_path.insert(0, _Finder(session, guarded))
    return session


def _rehearsal(session: Any) -> Any:
    """Return the rehearsal of this process; None where its script is recorded."""
    if not fmt.is_rehearsed():
        return None
    from .rehearsal import start

    return start.begin(session, os.environ[fmt.REHEARSAL])


def _guarded(patch: Callable[[ModuleType], None], session: Any) -> Callable[[ModuleType], None]:
    """Return ``patch`` such that a change in a library's inside costs a fact, not the script."""

    def apply(module: ModuleType) -> None:
        try:
            patch(module)
        except Exception as error:
            session.failed("patch " + module.__name__, error)

    return apply


class _Finder:
    """Finds nothing itself; has the true loader call a patch once it has run the module."""

    def __init__(self, session: Any, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._session = session
        self._waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders give, its loader wrapped."""
        if name not in self._waiting and name not in _STEPS_TO_COME:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                try:
                    self._shadow(spec.loader, name)
                except Exception as error:  # a loader of somebody's own that cannot be changed
                    self._session.failed("import " + name, error)
                return spec  # type: ignore[no-any-return]
        return None

    def _shadow(self, loader: Any, name: str) -> None:
        # The method of this one loader is shadowed, not the loader replaced: ``inspect`` and
        # ``importlib.resources`` look at the loader's type. A spec may be asked for without an
        # import to follow, so what is waiting goes on waiting until the module runs.
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if name in _STEPS_TO_COME:
                self._session.fact("framework", framework=name)
            rehearsal = self._session.rehearsal if name == "torch" else None
            if rehearsal is not None:
                rehearsal.before_torch()
            original(module)
            if rehearsal is not None:
                rehearsal.after_torch(module)
            patch = self._waiting.pop(name, None)
            if patch is not None:
                patch(module)

        loader.exec_module = exec_module


# Patches by module, and how each is taken out again.


def of(session: Session) -> dict[str, Callable[[ModuleType], None]]:
    """Return module name -> what to do once it has been imported."""
    announced = Announced(session)
    found: dict[str, Callable[[ModuleType], None]] = {
        **rounds.hooks(session),
        "logging": announced.in_log,
        "warnings": announced.in_warnings,
        "torch": functools.partial(_threads, session),
        "torch.optim.optimizer": functools.partial(_optimizer, session),
        "torch.serialization": functools.partial(_saving, session),
        "torch.autograd": functools.partial(_autograd, session),
        "torch.utils.data.dataloader": functools.partial(_loader, session),
        "torch.distributed.distributed_c10d": functools.partial(_process_group, session),
        "torch.nn.parallel.distributed": functools.partial(_data_parallel, session),
        "argparse": functools.partial(_arguments, session),
    }
    if os.environ.get(fmt.WRAP_VARIABLE):
        from . import ranks

        ranks.add(session, found)
    return found


def _threads(session: Session, module: Any) -> None:
    if session.wants is not None:
        session.wants.patch(module)
    original = module.set_num_threads

    def set_num_threads(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        # A loader's own threads limit themselves in this way: theirs is no limit of the script.
        if threading.current_thread() is threading.main_thread():
            session.threads_called = module.get_num_threads()

    replace(session, module, "set_num_threads", set_num_threads)


def _optimizer(session: Session, module: Any) -> None:
    original = module.Optimizer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        session.optimizer_made(self)

    replace(session, module.Optimizer, "__init__", init)
    # It stays once registered: it lets go while the framework iterates over its hooks, when none
    # may be removed. Released, it returns at once.
    module.register_optimizer_step_post_hook(session.optimizer_stepped)


# The wrappers below do their common case themselves: where caches are cold, every Python call
# costs a microsecond.


def _autograd(session: Session, module: Any) -> None:
    original, rank_of_backward = module.backward, fmt.CLOCK_RANK[fmt.CLOCK_BACKWARD]

    def backward(*args: Any, **kwargs: Any) -> Any:
        if session.deep is not None:
            session.backward_begins()
        result = original(*args, **kwargs)
        session.backwards += 1
        if session.gradients.is_open:
            session.gradients.pass_ended()
        if session.rank <= rank_of_backward:
            session.backward_ended()
        return result

    replace(session, module, "backward", backward)


def _saving(session: Session, module: Any) -> None:
    original, monotonic_ns = module.save, time.monotonic_ns

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        begin_ns, delay_ns = monotonic_ns(), session.loaders.delay.main_ns()
        result = original(obj, f, *args, **kwargs)
        session.saved(f, begin_ns, delay_ns)
        return result

    replace(session, module, "save", save)


def _loader(session: Session, module: Any) -> None:
    iterator, loader, loaders = module._BaseDataLoaderIter, module.DataLoader, session.loaders
    original_next, original_iter = iterator.__next__, loader.__iter__
    monotonic_ns = time.monotonic_ns

    def next_batch(self: Any) -> Any:
        deep = session.deep
        if deep is not None:
            deep.loader_runs(True)
        begin_ns = monotonic_ns()
        cpu_ns = loaders.measure() if loaders.asks_cpu else -1
        try:
            batch = original_next(self)
        except BaseException:
            session.batch_missing()
            raise
        if session.quick_id and cpu_ns < 0 and loaders.note(self, batch, begin_ns):
            return batch
        session.batch_fetched(self, batch, begin_ns, cpu_ns)
        return batch

    def begin(self: Any) -> Any:
        result = original_iter(self)
        session.loader_begun(self, result)
        return result

    replace(session, iterator, "__next__", next_batch)
    replace(session, loader, "__iter__", begin)


def _process_group(session: Session, module: Any) -> None:
    original = module.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if session.wants is not None:
            session.wants.joins(args[0] if args else kwargs.get("backend"))
        result = original(*args, **kwargs)
        session.group_joined(module.get_rank(), module.get_world_size(), str(module.get_backend()))
        return result

    destroy = module.destroy_process_group

    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        session.group_leaves()
        return destroy(*args, **kwargs)

    package = sys.modules.get("torch.distributed")
    put = functools.partial(replace, session)
    for own in (init_process_group, destroy_process_group):
        state.replace_in_both(module, package, own.__name__, own, put)
    state.patch(session.communication, module, package, put)


def _data_parallel(session: Session, module: Any) -> None:
    wrapper = module.DistributedDataParallel
    original = wrapper.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        session.replicas_made(self)

    replace(session, wrapper, "__init__", init)


def _arguments(session: Session, module: Any) -> None:
    parser = module.ArgumentParser
    original = parser.parse_known_args

    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        session.arguments_parsed(result[0])
        return result

    refuse = parser.error

    def error(self: Any, message: str) -> Any:
        ending.note(session, "arguments", message)
        return refuse(self, message)

    replace(session, parser, "parse_known_args", parse_known_args)
    replace(session, parser, "error", error)
