"""The time that environments of reinforcement learning take: host time inside a step.

Classes of ``gymnasium``, ``gym`` and Stable-Baselines3 have their ``step`` timed as they are made,
wrappers and vectors of environments as one: only the outermost counts.

Scripts act for a while and then learn in many updates: time is that between the beginnings of two
such rounds, divided by the updates between them. What comes before the first update may be a
warm-up of its own, and only counts where nothing else was seen.
"""

from __future__ import annotations

import functools
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULES = (
    "gym.core", "gym.vector.vector_env", "gymnasium.core", "gymnasium.vector.vector_env",
    "stable_baselines3.common.vec_env.base_vec_env",
)  # fmt: skip


_COMPUTES = 0.3  # of its time, at the least


class Environments:
    """What the environments of this process took so far."""

    def __init__(self, updates: Callable[[], int], round_begins: Callable[[], None]) -> None:
        self._updates = updates  # of the optimizer, until now
        self._round_begins = round_begins  # called where one has ended
        self._wall_s = self._cpu_s = 0.0
        self._frames = self._depth = 0
        # Updates, seconds spent and frames where rounds began: the first two and the last.
        self._rounds: list[tuple[int, float, float, int]] = []

    @property
    def is_open(self) -> bool:
        """Whether one has been stepped, and how long a step takes is not known yet."""
        return len(self._rounds) == 1

    def facts(self) -> dict[str, float]:
        """Return the updates and frames of whole rounds, and what environments take of an update.

        Empty where no round was seen whole [s].
        """
        if len(self._rounds) < 2:
            return {}
        updates, wall_s, cpu_s, frames = (
            end - begin for begin, end in zip(*self._rounds[-2:])
        )  # fmt: skip
        # One that computes in this thread waits for nothing but a core.
        took_s = cpu_s if cpu_s > _COMPUTES * wall_s else wall_s
        return {"per_step_s": took_s / updates, "updates": updates, "frames": frames}

    def watch(self, module: Any) -> None:
        """Have environments of a library be timed from their class on."""
        for name in ("Env", "VectorEnv", "VecEnv"):
            kind = getattr(module, name, None)
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                self._watch_subclasses(kind)

    def _watch_subclasses(self, kind: Any) -> None:
        def made(cls: Any, /, **named: Any) -> None:
            super(kind, cls).__init_subclass__(**named)
            own = cls.__dict__.get("step")
            if own is not None:
                cls.step = self._timed(own)

        kind.__init_subclass__ = classmethod(made)
        if "step_wait" in kind.__dict__:  # its own step is made of two parts
            kind.step = self._timed(kind.step)

    def _timed(self, step: Any) -> Any:
        @functools.wraps(step)
        def timed(*args: Any, **named: Any) -> Any:
            if not self._depth:
                self._begins(self._updates())
                self._frames += int(getattr(args[0], "num_envs", 1))
            self._depth += 1
            begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
            try:
                return step(*args, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._wall_s += time.perf_counter() - begin_s
                    self._cpu_s += time.thread_time() - begin_cpu_s

        return timed

    def _begins(self, updates: int) -> None:
        rounds = self._rounds
        if not rounds or updates > rounds[-1][0]:
            del rounds[2:]
            rounds.append((updates, self._wall_s, self._cpu_s, self._frames))
            if updates:
                self._round_begins()
