"""Patches of the modules that the hooks look into, and how each is taken out again."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref

from . import communication, ending, environments
from . import format as fmt
from .announced import Announced
from .frameworks import rounds
from .frameworks.rounds import replace, then

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .session import Session


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
        **dict.fromkeys(environments.MODULES, session.environments.watch),
    }
    if os.environ.get(fmt.WRAP_VARIABLE):
        from . import wrapping

        wrapping.add(session, found)
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
    then(session, module.Optimizer, "__init__", lambda _, own, *__: session.optimizer_made(own))
    # It stays once registered: it lets go while the framework iterates over its hooks, when none
    # may be removed. Released, it returns at once.
    module.register_optimizer_step_post_hook(session.optimizer_stepped)


def _autograd(session: Session, module: Any) -> None:
    """Count backward passes.

    This wrapper, like the loaders', does its common case itself: where caches are cold, every
    Python call costs a microsecond.
    """
    original, rank_of_backward = module.backward, fmt.CLOCK_RANK[fmt.CLOCK_BACKWARD]

    def backward(*args: Any, **kwargs: Any) -> Any:
        if session.deep is not None:
            session.backward_begins()
        result = original(*args, **kwargs)
        session.backwards += 1
        if session.rehearsal is not None:
            is_left_out = session.rehearsal.passes.ended()
            if session.deep is not None:
                session.deep.pass_ended(is_left_out)
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
    iterator, loaders = module._BaseDataLoaderIter, session.loaders
    original_next, monotonic_ns = iterator.__next__, time.monotonic_ns

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

    replace(session, iterator, "__next__", next_batch)
    then(session, module.DataLoader, "__iter__",
         lambda result, own: session.loader_begun(own, result))  # fmt: skip
    then(session, module.DataLoader, "_get_iterator",  # whose owner may keep it for all epochs
         lambda result, own: setattr(result, "_advisor_of", weakref.ref(own)))  # fmt: skip


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
        communication.replace_in_both(module, package, own.__name__, own, put)
    communication.patch(session.communication, module, package, put)


def _data_parallel(session: Session, module: Any) -> None:
    wrapper = module.DistributedDataParallel
    then(session, wrapper, "__init__", lambda _, own, *__: session.replicas_made(own))


def _arguments(session: Session, module: Any) -> None:
    parser = module.ArgumentParser
    then(session, parser, "parse_known_args",
         lambda result, *_: session.arguments_parsed(result[0]))  # fmt: skip
    refuse = parser.error

    def error(self: Any, message: str) -> Any:
        ending.note(session, "arguments", message)
        return refuse(self, message)

    replace(session, parser, "error", error)
