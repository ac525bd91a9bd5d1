"""Chores between two steps, each as seldom as it can be: a step pays for little."""

from __future__ import annotations

import os
import sys
import threading
import time

from . import format as fmt
from . import lineage
from .format import Control
from .optimizers import DeviceClock, UpdateTimer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import ProcessState


# Limits on the use of the machine, as the script's own process sees them.


# Variables that the frameworks' thread pools read when they start.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def facts(torch: Any, called: int | None, is_rank: bool = False) -> dict[str, Any]:
    """Return the limits in force."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on Linux
        affinity = os.cpu_count() or 1
    said = {name: os.environ.get(name, "").split(",")[0].strip() for name in _VARIABLES}
    if is_rank:  # the cores of this machine are shared out: no limit of the script
        affinity, said = os.cpu_count() or 1, {}
    return {
        "threads": None if torch is None else torch.get_num_threads(),
        "called": called,
        "environment": {name: int(value) for name, value in said.items() if value.isdigit()},
        "affinity": affinity,
    }


# The experts that tokens are sent to, seen at the routers of a mixture of experts.
#
# A layer routes if one of its children is named after experts and holds several alike, and another
# has a weight with a row for each of them: the router. How many experts a token uses stands in an
# attribute of either (``top_k`` and its like). What the router returns are scores, of which the
# largest are taken here too, or the chosen experts themselves.
#
# Now and then, the more seldom the longer the recording, one forward pass is kept: the first
# tokens in their order, in every layer. In between a router's hook returns at once. Nothing is
# drawn at random, no gradient is made, and nothing that the script computes is changed.


_TOPS = ("top_k", "num_experts_per_tok", "num_experts_per_token", "topk", "moe_top_k", "k")
_COUNTS = ("num_experts", "n_experts", "num_local_experts")
_MOST_TOKENS = 512
_MOST_NUMBERS = 16384  # in one pass, all layers together
_LEAST_NS = 1_000_000_000
_SHARE = 12  # of the time since the first pass, between two


class RouterHooks:
    """The routers of the trained model and the pass that is being kept."""

    def __init__(self, state: ProcessState) -> None:
        self.is_found = False
        self._state = state
        self._handles: list[Any] = []
        self._names: list[str] = []
        self._top = self._experts = 0
        self._kept: dict[str, Any] = {}
        self._is_wanted = self._is_training = False
        self._first_ns = self._due_ns = self._step = 0

    def find(self, roots: list[Any]) -> None:
        """Look for routers in the models that a traced step went through, once."""
        if self._handles:
            return
        found = [one for root in roots for one in routers_of(root)]
        # Layers of one kind: a model whose layers route unlike each other is left alone.
        if not found or len({(one["experts"], one["top"]) for one in found}) != 1:
            return
        self._experts, self._top = found[0]["experts"], found[0]["top"]
        self._names = [one["name"] for one in found]
        if len(set(self._names)) != len(found):
            return
        weights = {id(p): _size(p) for root in roots for p in root.parameters()}
        held = {id(p): _size(p) for one in found for p in one["weights"]}
        self._state.fact(
            "routers",
            layers=self._names,
            experts=self._experts,
            top=self._top,
            expert_bytes=sum(held.values()) // (len(found) * self._experts),
            dense_bytes=sum(size for key, size in weights.items() if key not in held),
        )
        for one in found:
            self._handles.append(one["router"].register_forward_hook(self._hook(one["name"])))
        self._first_ns = time.monotonic_ns()
        self.is_found = True

    def tick(self, now_ns: int) -> None:
        """Record the pass that was kept, and ask for another when it is time."""
        if self._is_wanted and len(self._kept) == len(self._names):
            kept, self._kept, self._is_wanted = self._kept, {}, False
            self._due_ns = now_ns + max(_LEAST_NS, (now_ns - self._first_ns) // _SHARE)
            # ``tolist`` waits for the device, which is why it is not done inside the pass.
            experts = [kept[name].flatten().tolist() for name in self._names]
            if len({len(layer) for layer in experts}) == 1:
                self._state.fact(
                    "routes", step=self._step, training=self._is_training, experts=experts
                )
        elif not self._is_wanted and now_ns >= self._due_ns:
            self._kept, self._is_wanted = {}, True

    def remove(self) -> None:
        """Take the hooks out."""
        self.is_found = self._is_wanted = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Any:
        def routed(module: Any, args: Any, output: Any) -> None:
            if self._is_wanted and name not in self._kept:
                try:
                    self._keep(name, module, output)
                except Exception as error:
                    self._is_wanted, self._due_ns = False, 1 << 62
                    self._state.failed("routing", error)

        return routed

    def _keep(self, name: str, module: Any, output: Any) -> None:
        # A pass begins with the first layer: what is asked for in the middle of one waits.
        if self._state.deep is not None or (not self._kept and name != self._names[0]):
            return
        if not self._kept:
            self._step = self._state.steps
        import torch

        with torch.no_grad():
            chosen = _chosen(output, self._experts, self._top)
            if chosen is None:
                raise ValueError("a router returns neither scores nor experts")
            most = min(_MOST_TOKENS, _MOST_NUMBERS // (len(self._names) * self._top))
            self._kept[name] = chosen[: max(most, 1)].clone()
        self._is_training = bool(module.training)


def routers_of(root: Any) -> list[dict[str, Any]]:
    """Return the routers in a model, in the order in which they are made."""
    found = []
    for name, module in root.named_modules():
        children = dict(module.named_children())
        for held_name, held in children.items():
            if "expert" not in held_name.lower():
                continue
            experts = _experts_in(held)
            for child_name, child in children.items():
                weight = getattr(child, "weight", None)
                rows = tuple(getattr(weight, "shape", ()))
                if child is held or experts < 2 or len(rows) != 2 or rows[0] != experts:
                    continue
                top = _number(_TOPS, module, child, held)
                if 1 <= top < experts:
                    found.append({
                        "name": (name + "." if name else "") + child_name, "router": child,
                        "experts": experts, "top": top, "weights": list(held.parameters()),
                    })  # fmt: skip
    return found


def _experts_in(held: Any) -> int:
    children = list(held.children())
    if len(children) > 1 and len({type(one) for one in children}) == 1:
        return len(children)
    leading = {int(p.shape[0]) for p in held.parameters(recurse=False) if p.dim() == 3}
    if len(leading) == 1:  # all experts' matrices in one tensor
        return leading.pop()
    return _number(_COUNTS, held)


def _number(names: tuple[str, ...], *modules: Any) -> int:
    for module in modules:
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return 0


def _chosen(output: Any, experts: int, top: int) -> Any:
    """Return the experts of each token, best first; None if that cannot be told."""
    parts = output if isinstance(output, (tuple, list)) else (output,)
    tensors = [one for one in parts if hasattr(one, "dim") and one.dim() > 1]
    for one in tensors:
        if not one.is_floating_point() and one.shape[-1] == top:
            return one.reshape(-1, top)
    for one in tensors:
        if one.is_floating_point() and one.shape[-1] == experts:
            return one.detach().reshape(-1, experts).topk(top, dim=-1).indices
    return None


def _size(parameter: Any) -> int:
    return int(parameter.numel() * parameter.element_size())


# The steps after which a step is traced. The first two create optimizer state and compile; a
# repetition lets the least time of an operator count, since a busy machine only adds. A step of
# many small operators (LBFGS evaluates its loss twenty times) takes seconds to trace, and as many
# ordinary steps are not seen: none is traced again once so much has been spent.
_DEEP_AFTER = (2, 5, 8)
# A rehearsal computes nothing: one step makes the optimizer's state, the next is traced.
_DEEP_REHEARSED = (1,)
_DEEP_BUDGET_NS = 1_000_000_000
# Where so much has passed from the optimizer to the end of the first step, the second is traced
# already: of a model that is too large for this machine nobody waits for a third.
_SLOW_NS = 10_000_000_000
_WORK_AT = (2, 5, 12)  # again: a loop's counter shows how many turns make a step
_WORK_REHEARSED = (1, 2, 5)
_COMMUNICATION_AT = 10  # the framework times the first ten steps
_LAST_PLANNED = 13
# The waiting for a core is read no more often than this: sums are what counts, and reading it is
# the dearest part of a fast step. It is read before the step is recorded: a step in which much
# else happened, the first of an epoch say, has its own waiting, and the next one does not.
_PERIOD_NS = 20_000_000
_ORDERS_NS = 100_000_000
_RANK_BACKWARD = fmt.CLOCK_RANK[fmt.CLOCK_BACKWARD]


class Chores:
    """Everything between steps that is not counting them.

    Attributes
    ----------
    due_step : int
        Below this step something may be due by count; every step where a device is timed.
    """

    def __init__(self, state: ProcessState, folder: str) -> None:
        self.control = Control(folder)
        self.due_ns = 0
        self.due_step = _LAST_PLANNED
        self.delay_ns = 0
        self.routing = RouterHooks(state)
        self.updates = UpdateTimer()
        self._state = state
        self._delay = state.loaders.delay
        self._device_clock = DeviceClock(state.writer)
        self._next_orders_ns = 0
        self._deep_wanted = self._deep_plan()
        self._deep_delay_ns = self._deep_spent_ns = self._deep_begin = 0

    def read_delay(self) -> None:
        """Bring ``delay_ns`` up to date."""
        self.delay_ns = self._delay.main_ns()

    def run(self, now_ns: int) -> None:
        """Do what is due after a step."""
        state = self._state
        was_traced = state.deep is not None
        self.end_deep()
        self.due_ns = now_ns + _PERIOD_NS
        if now_ns >= self._next_orders_ns:
            self._next_orders_ns = now_ns + _ORDERS_NS
            self.control.poll()
            state.last_step = self.control.from_step
        if self._delay.pool_is_due(now_ns):
            delay = self._delay
            times = time.monotonic_ns(), delay.read_pool(), delay.main_ns(), delay.others_ns
            state.writer.write(fmt.POOL, fmt.POOL_PAYLOAD.pack(*times, delay.main_cpu_ns()))
        if self.routing.is_found:
            self.routing.tick(now_ns)
        self.record_communication(now_ns)
        # Passes of an accumulated step come before the optimizer's first: they are no steps.
        is_early = state.clock == fmt.CLOCK_BACKWARD and state.optimizers.is_waited_for
        if state.clock != fmt.CLOCK_LOADER and not is_early:
            self._by_count(state.steps, was_traced)
            if state.rehearsal is None:
                self._time_updates(state.steps)
            else:
                self._end_rehearsal(state.steps)

    def _end_rehearsal(self, step: int) -> None:
        """Stop the script where enough of it has been rehearsed."""
        state = self._state
        has_traced = state.deep is None and not self._deep_wanted
        if state.rehearsal.is_over(step, has_traced=has_traced):
            self.control.action, state.last_step = fmt.ACTION_STOP, step

    def record_communication(self, now_ns: int, *, is_last: bool = False) -> None:
        """Record what training together has cost, where this process does."""
        state = self._state
        if state.is_together:
            try:
                delay_ns, model = self._delay.main_ns(), state.data_parallel
                state.communication.record(now_ns, delay_ns, state.steps, model, is_last)
            except Exception as error:
                state.failed("communication", error)

    def _by_count(self, step: int, was_traced: bool) -> None:
        torch = sys.modules.get("torch")
        is_timed = self._state.rehearsal is None
        if is_timed and torch is not None and torch.cuda.is_initialized():
            self.due_step = sys.maxsize
            if not was_traced:
                self._device_clock.tick(torch, step)
        work_at = _WORK_AT if self._state.rehearsal is None else _WORK_REHEARSED
        if step == work_at[0]:
            self._describe(torch)
        if step in work_at:
            self._find_work(step)
            self._state.loaders.flush()
        if step == _COMMUNICATION_AT:
            self._describe_communication()
        since_ns = time.monotonic_ns() - (self._state.optimizer_made_ns or time.monotonic_ns())
        if step == 1 and is_timed and since_ns > _SLOW_NS:
            self._deep_wanted = [1, *self._deep_wanted]
        is_torch = self._state.rank >= _RANK_BACKWARD  # a round of another framework shows nothing
        if is_torch and self._deep_wanted and step >= self._deep_wanted[0]:
            self._begin_deep(torch)

    def _describe(self, torch: Any) -> None:
        state = self._state
        lineage.begin_training()
        if torch is not None:
            # Asking whether there could be a device would break the script's forks.
            devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
            state.fact(
                "torch",
                version=str(torch.__version__),
                threads=torch.get_num_threads(),
                cuda=[torch.cuda.get_device_name(index) for index in range(devices)],
            )
        state.fact("optimizers", optimizers=state.optimizers.facts())
        from .trace import source

        try:
            state.fact("told", **source.facts(state.switches, sys._getframe()))
        except Exception as error:
            state.failed("told", error)
        state.fact("limits", **facts(torch, state.threads_called, state.is_rank))

    def look_again(self) -> None:
        """Look at the loops once more at the last step: do they turn as they should."""
        if self._state.steps > _WORK_AT[-1]:
            self._find_work(self._state.steps)

    def _find_work(self, step: int) -> None:
        from .trace import source

        state = self._state
        try:
            found = source.find(sys._getframe())
        except Exception as error:
            state.failed("total work", error)
            return
        state.fact("work", step=step, candidates=found, arguments=state.arguments)

    def _time_updates(self, step: int) -> None:
        state = self._state
        if state.clock == fmt.CLOCK_OPTIMIZER:
            times = self.updates.run(step)
            if times:
                state.fact("updates", ns=times)

    def _describe_communication(self) -> None:
        reference = self._state.data_parallel
        module = None if reference is None else reference()
        if module is not None:
            data = module._get_ddp_logging_data()
            self._state.fact("ddp", **{key: value for key, value in data.items() if value != ""})

    def _begin_deep(self, torch: Any) -> None:
        if torch is None or threading.current_thread() is not threading.main_thread():
            return
        if torch.autograd._profiler_enabled():  # later: the script's own trace stays its own
            return
        from .trace.deep import DeepTrace

        self._deep_wanted.pop(0)

        state = self._state
        self._deep_delay_ns = self._delay.main_ns()
        mode = None
        if state.rehearsal is not None:
            mode = state.rehearsal.mode
            state.rehearsal.step_begins()
        self._deep_begin = state.steps
        state.deep = DeepTrace.begin(state.optimizers, state.loaders, state.failed, mode)

    def begin_anew(self) -> None:
        """Do again what is done in the first steps: those before were parts of steps."""
        self.end_deep()
        self.updates.close()
        self.due_step = max(self.due_step, _LAST_PLANNED)
        self._deep_wanted = self._deep_plan()

    def _deep_plan(self) -> list[int]:
        is_rehearsed = self._state.rehearsal is not None
        return list(_DEEP_REHEARSED if is_rehearsed else _DEEP_AFTER)

    def end_deep(self) -> None:
        """Close a traced step, if one is open, and record it."""
        state = self._state
        deep, state.deep = state.deep, None
        if deep is None:
            return
        begin_ns = time.monotonic_ns()
        delay_ns = self._delay.main_ns() - self._deep_delay_ns
        facts = deep.end()
        if state.rehearsal is not None and facts is not None:
            facts["is_compiled"] |= state.rehearsal.compiles
            if state.rehearsal.mode.is_least:
                is_whole = state.steps > self._deep_begin
                state.rehearsal.least_ended(facts["operators"] if is_whole else None)
                return
            state.rehearsal.step_ended(deep.parameters, state.optimizers.states())
            if state.rehearsal.mode.is_least:
                self._deep_wanted.append(state.steps)
        if facts is not None:
            state.fact("deep_step", number=state.steps, delay_ns=delay_ns, **facts)
            self._deep_spent_ns += facts["duration_ns"] + time.monotonic_ns() - begin_ns
            if self._deep_spent_ns > _DEEP_BUDGET_NS:
                self._deep_wanted.clear()
            if not facts["is_compiled"]:  # a hook would have its graphs compiled again
                self.routing.find(deep.roots)

    def forget(self) -> None:
        """Open anew what shows the parent after a fork."""
        self._delay.forget()
