"""Customers that wait for their own result before they ask again: a closed loop of queues.

=================  ==============================================================================
here               meaning, unit
=================  ==============================================================================
``think_s``        what a customer does between a result and its next request. [s]
``service_s``      what a request takes of each server; 0 where it asks nothing of it. [s]
``wait``           until the last server has answered, less the longest of its own services. [s]
=================  ==============================================================================

A request goes to all servers it asks at once; each serves in the order of asking. Who waits asks
later, so a full server slows its customers, and no queue grows without end as an open one does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import NEVER, EventLoop, check_not_negative, check_positive

Table = NDArray[np.float64]

_WARM_UP: Final = 0.2  # of the rounds: until customers that meet have made way for each other


class ClosedLoop(EventLoop):
    """Customers and servers on the simulator's clock; who was answered thinks and asks again."""

    def __init__(self, think_s: Table, service_s: Table, first_s: Table) -> None:
        order = np.argsort(first_s, kind="stable")
        count = len(order)
        super().__init__(first_s[order].tolist())
        self.think_s = think_s[:, order]  # (rounds, customers)
        self.service_s = service_s[:, order]  # (servers, customers)
        self.customers = order
        self.events: list[tuple[float, int, int, int]] = []  # time, number, server, customer
        self.lines: list[deque[int]] = [deque() for _ in service_s]
        self.is_busy = [False] * len(service_s)
        self.left = [0] * count
        self.asked_s = [0.0] * count
        self.waits: list[list[float]] = [[] for _ in range(count)]
        self.numbers = 0

    def next_event(self) -> float:
        """Return the next end of a service or of thinking."""
        return self.events[0][0] if self.events else NEVER

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """Let who is ready ask, and who was served go on."""
        for customer in arrived:
            self._ask(now, customer)
        while self.events and self.events[0][0] <= now:
            _, _, server, customer = heapq.heappop(self.events)
            if server < 0:
                self._ask(now, customer)
                continue
            self.is_busy[server] = False
            self._serve(now, server)
            self.left[customer] -= 1
            if not self.left[customer]:
                self._answer(now, customer)

    def _ask(self, now: float, customer: int) -> None:
        self.asked_s[customer] = now
        servers = np.flatnonzero(self.service_s[:, customer])
        self.left[customer] = len(servers)
        for server in servers.tolist():
            self.lines[server].append(customer)
            self._serve(now, server)
        if not len(servers):
            self._answer(now, customer)

    def _serve(self, now: float, server: int) -> None:
        if self.lines[server] and not self.is_busy[server]:
            customer = self.lines[server].popleft()
            self.is_busy[server] = True
            self._at(now + float(self.service_s[server, customer]), server, customer)

    def _answer(self, now: float, customer: int) -> None:
        own = float(self.service_s[:, customer].max(initial=0.0))
        self.waits[customer].append(max(now - self.asked_s[customer] - own, 0.0))
        think = self.think_s[len(self.waits[customer]) % len(self.think_s), customer]
        self._at(now + float(think), -1, customer)

    def _at(self, time: float, server: int, customer: int) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (time, self.numbers, server, customer))


def closed_loop_waits_s(think_s: Table, service_s: Table, *, seed: int = 0) -> Table:
    """Return what each customer waits for others in a round, on average [s].

    ``think_s``: (rounds, customers), drawn or recorded; ``service_s``: (servers, customers). They
    begin at moments of their own; the first fifth of the time is left out.

    Raises PlanningError if a time makes no sense.
    """
    check_positive("closed loop", think_s=think_s)
    check_not_negative("closed loop", service_s=service_s)
    rounds, count = think_s.shape
    mean = think_s.mean(axis=0)
    whole_s = rounds * float((mean + service_s.max(axis=0, initial=0.0)).max())
    first_s = np.random.default_rng(seed).uniform(0.0, mean)
    loop = ClosedLoop(think_s, service_s, first_s)
    loop.run(until_s=_WARM_UP * whole_s)
    before = [len(one) for one in loop.waits]
    loop.run(until_s=(1.0 + _WARM_UP) * whole_s)
    found = np.zeros(count)
    for place, customer in enumerate(loop.customers.tolist()):
        seen = loop.waits[place][before[place] :] or loop.waits[place] or [0.0]
        found[customer] = float(np.mean(seen))
    return found
