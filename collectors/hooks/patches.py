"""What is hooked in which module, and how to let go of it again."""

from __future__ import annotations

import functools
import time

from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .session import Session


def of(session: Session) -> dict[str, Callable[[ModuleType], None]]:
    """Return module name -> what to do once it has been imported."""
    return {
        "torch.optim.optimizer": functools.partial(_optimizer, session),
        "torch.serialization": functools.partial(_saving, session),
        "torch.autograd": functools.partial(_autograd, session),
        "torch.utils.data.dataloader": functools.partial(_loader, session),
        "torch.distributed.distributed_c10d": functools.partial(_process_group, session),
        "torch.nn.parallel.distributed": functools.partial(_data_parallel, session),
        "argparse": functools.partial(_arguments, session),
    }


def _replace(session: Session, owner: Any, name: str, replacement: Any) -> None:
    """Put ``replacement`` in place of ``owner.name`` until the session lets go."""
    original = getattr(owner, name)
    functools.update_wrapper(replacement, original)
    setattr(owner, name, replacement)

    def restore() -> None:
        if getattr(owner, name, None) is replacement:
            setattr(owner, name, original)

    session.on_release(restore)


def _optimizer(session: Session, module: Any) -> None:
    original = module.Optimizer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        session.optimizer_made(self)

    _replace(session, module.Optimizer, "__init__", init)
    # It stays once registered: it lets go while the framework iterates over its hooks, when none
    # may be removed. Released, it returns at once.
    module.register_optimizer_step_post_hook(session.optimizer_stepped)


# The wrappers below do their common case themselves: where caches are cold, every Python call
# costs a microsecond.


def _autograd(session: Session, module: Any) -> None:
    original = module.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        if session.deep is not None:
            session.backward_begins()
        result = original(*args, **kwargs)
        session.backwards += 1
        if session.clock <= fmt.CLOCK_BACKWARD:
            session.backward_ended()
        return result

    _replace(session, module, "backward", backward)


def _saving(session: Session, module: Any) -> None:
    original, monotonic_ns = module.save, time.monotonic_ns

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        begin_ns = monotonic_ns()
        result = original(obj, f, *args, **kwargs)
        session.saved(f, begin_ns)
        return result

    _replace(session, module, "save", save)


def _loader(session: Session, module: Any) -> None:
    iterator, loader, loaders = module._BaseDataLoaderIter, module.DataLoader, session.loaders
    original_next, original_iter = iterator.__next__, loader.__iter__
    thread_time_ns, monotonic_ns = time.thread_time_ns, time.monotonic_ns

    def next_batch(self: Any) -> Any:
        deep = session.deep
        if deep is not None:
            deep.loader_runs(True)
        cpu_ns = thread_time_ns() if loaders.asks_cpu else -1
        begin_ns = monotonic_ns()
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

    _replace(session, iterator, "__next__", next_batch)
    _replace(session, loader, "__iter__", begin)


def _process_group(session: Session, module: Any) -> None:
    original = module.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        session.fact(
            "process_group",
            rank=module.get_rank(),
            world_size=module.get_world_size(),
            backend=str(module.get_backend()),
        )
        return result

    _replace(session, module, "init_process_group", init_process_group)


def _data_parallel(session: Session, module: Any) -> None:
    wrapper = module.DistributedDataParallel
    original = wrapper.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        session.replicas_made(self)

    _replace(session, wrapper, "__init__", init)


def _arguments(session: Session, module: Any) -> None:
    parser = module.ArgumentParser
    original = parser.parse_known_args

    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        session.arguments_parsed(result[0])
        return result

    _replace(session, parser, "parse_known_args", parse_known_args)
