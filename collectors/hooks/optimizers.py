"""The optimizers of a script, and which of their steps completes a training step.

One optimizer leads: a training step completes when it steps. Whichever it is, as long as it steps
once a period, every period of the script's schedule gives one training step; so the order in which
optimizers were made does not matter, and the leader changes for a reason only:

- it is the last of those waiting to step for the first time (a GAN's generator closes the period);
- it no longer exists or has fallen silent;
- another steps so seldom that two steps complete between two turns of it, twice in a row.

A turn is a run of steps of one optimizer with no other's in between. Where the leader's turns are
of several steps (80 of a policy, then 80 of a value function), its first step completes.
"""

from __future__ import annotations

import weakref

from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# The longest schedule that is recognised, in steps of all optimizers: Wasserstein GANs train the
# critic 100 times for a generator step at first. One step seen tells no rhythm: it counts as this.
_LONGEST = 128
# Steps of others for which an optimizer that has not stepped yet is waited for.
_UNUSED = 16
# An optimizer has fallen silent after so many of its usual pauses (loss scaling skips steps).
_PAUSES = 4
# Turns. A skipped step shortens two of them at most, which does not move the middle of five.
_REMEMBERED = 5
_PROOFS = 2


class _Seen:
    """One optimizer: its number in the order of making, its steps, and its recent turns.

    Attributes
    ----------
    runs, pauses : tuple of int
        Of its last turns: their steps, and the ticks from one's begin to the next one's.
    completed_before, proofs : int
        Training steps completed when its last turn began, and how many times in a row there were
        two or more from one turn to the next.
    """

    __slots__ = (
        "begun", "completed_before", "count", "last", "number", "pauses", "proofs", "reference",
        "run", "runs",
    )  # fmt: skip

    def __init__(self, optimizer: Any, number: int, tick: int) -> None:
        self.reference = weakref.ref(optimizer)  # a model may be dropped
        self.number = number
        self.count = self.run = self.completed_before = self.proofs = 0
        self.last = self.begun = tick
        self.runs: tuple[int, ...] = ()
        self.pauses: tuple[int, ...] = ()

    def steps_once(self) -> bool:
        """Whether its turns are of one step, as far as it is known."""
        return not self.runs or sorted(self.runs)[(len(self.runs) - 1) // 2] == 1

    def is_active(self, tick: int) -> bool:
        """Whether it still exists and may step again."""
        if self.pauses:
            longest = _PAUSES * max(self.pauses)
        else:
            longest = _UNUSED if self.count > 1 else _LONGEST
        return tick - self.last <= longest and self.reference() is not None

    def begin_turn(self, tick: int, completed: int) -> None:
        """Note that it steps after another did."""
        if self.count:
            pause = tick - self.begun
            self.pauses = (*self.pauses, pause)[-_REMEMBERED:]
            is_proof = completed - self.completed_before >= 2 and pause <= _LONGEST
            self.proofs = self.proofs + 1 if is_proof else 0
        self.completed_before = completed
        self.begun = tick
        self.run = 0


class Optimizers:
    """The optimizers seen, by identity, with their counts."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by id
        self._only: Any = None  # a reference, while there has been one
        self._made = 0
        self._ticks = 0
        self._latest: _Seen | None = None  # whose turn it is
        self._leader: _Seen | None = None
        self._former: _Seen | None = None  # a leader that fell silent, or had not been alone
        self._awaited: tuple[_Seen, ...] = ()  # had not stepped yet when the leader was chosen
        self._completed = 0
        self._renews = False

    def made(self, optimizer: Any) -> _Seen:
        """Take in a new optimizer."""
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.reference() is not optimizer:
            # Some scripts make one for every task: the dead are let go of.
            self._seen = {
                key: other for key, other in self._seen.items() if other.reference() is not None
            }
            seen = self._seen[id(optimizer)] = _Seen(optimizer, self._made, self._ticks)
            self._made += 1
            if self._only is not None and self._only.count:  # it was counted in passing
                only = self._leader = self._latest = self._only
                only.last, only.run = self._ticks, only.count
                self._completed = only.count
            self._only = seen if self._made == 1 else None
        return seen

    @property
    def is_waited_for(self) -> bool:
        """Whether there is an optimizer, but none has stepped yet."""
        return self._ticks == 0 and bool(self.alive())

    def is_only(self, optimizer: Any) -> bool:
        """Count a step of the only optimizer there is, nearly always; False if it is not."""
        only = self._only
        if only is None or only.reference() is not optimizer:
            return False
        self.count_only(1)
        return True

    def count_only(self, steps: int) -> None:
        """Count steps of the only optimizer there is."""
        self._ticks += steps
        self._only.count += steps

    def stepped(self, optimizer: Any) -> tuple[int, int]:
        """Count a step of one of several optimizers.

        Returns
        -------
        number : int
            The optimizer's, in the order of making.
        flags : int
            ``FLAG_COMPLETES`` if it completes a training step; with ``FLAG_RENEWED`` if it is the
            first whole one: those that completed before turned out to be parts of steps.
        """
        mine = self.made(optimizer)
        self._ticks += 1
        is_turn = self._latest is not mine
        if is_turn:
            self._end_turn()
            mine.begin_turn(self._ticks, self._completed)
            self._latest = mine
        mine.run += 1
        mine.count += 1
        mine.last = self._ticks
        number = min(mine.number, 0xFFFF)  # as wide as its field
        if not self._leads(mine) or not (is_turn or mine.steps_once() or self._is_alone(mine)):
            return number, 0
        self._completed += 1
        flags = fmt.FLAG_COMPLETES | (fmt.FLAG_RENEWED if self._renews else 0)
        self._renews = False
        return number, flags

    def _end_turn(self) -> None:
        seen = self._latest
        if seen is None:
            return
        counted_each = seen.steps_once()
        seen.runs = (*seen.runs, seen.run)[-_REMEMBERED:]
        if seen is self._leader and counted_each and not seen.steps_once():
            self._renews = True

    def _leads(self, mine: _Seen) -> bool:
        """Whether ``mine``, which has just stepped, leads; it may have begun to."""
        leader = self._leader
        if mine is leader:
            return True
        if leader is None or not leader.is_active(self._ticks):
            waiting = tuple(other for other in list(self._seen.values()) if not other.count)
            if any(self._ticks - other.last <= _UNUSED for other in waiting):
                return False
            self._follow(mine, waiting)
            return True
        if mine.count == 1 and mine in self._awaited:  # it was not waited for long enough
            self._follow(mine, tuple(other for other in self._awaited if not other.count))
            return True
        if mine is self._former:  # it has not gone, so what was counted without it were parts
            self._former = None
            self._renews = True
        if mine.proofs < _PROOFS:
            return False
        self._renews = True
        self._follow(mine, ())
        return True

    def _follow(self, leader: _Seen, awaited: tuple[_Seen, ...]) -> None:
        self._former = self._leader
        self._leader, self._awaited = leader, awaited
        for seen in list(self._seen.values()):  # what was seen under another's lead proves nothing
            seen.proofs, seen.completed_before = 0, self._completed

    def _is_alone(self, mine: _Seen) -> bool:
        others = (other for other in list(self._seen.values()) if other is not mine)
        return not any(other.count and other.is_active(self._ticks) for other in others)

    def alive(self) -> list[Any]:
        """Return the optimizers that still exist."""
        references = [seen.reference() for seen in list(self._seen.values())]
        return [optimizer for optimizer in references if optimizer is not None]

    def parameters(self) -> list[Any]:
        """Return every parameter in any optimizer, once."""
        groups = [group for one in self.alive() for group in one.param_groups]
        return list({id(own): own for group in groups for own in group["params"]}.values())

    def states(self) -> list[Any]:
        """Return the tensors that the optimizers keep beside the parameters."""
        kept = [state for one in self.alive() for state in one.state.values()]
        values = [one for state in kept if isinstance(state, dict) for one in state.values()]
        return [one for one in values if hasattr(one, "numel")]

    def facts(self) -> list[dict[str, Any]]:
        """Return what to record of each optimizer."""
        return [
            {
                "kind": type(optimizer).__name__,
                "parameters": sum(
                    parameter.numel()
                    for group in optimizer.param_groups
                    for parameter in group["params"]
                ),
                "steps": self._seen[id(optimizer)].count,
            }
            for optimizer in self.alive()
        ]
