"""Which nodes a job goes to: chosen by rules and by a learned policy, on days held out.

    pip install 'cloud-config-advisor[policies]'
    python -m advisor.lab.experiments.availability --json availability.json

Nodes are the virtual clusters of Helios' Earth (``datasets/measurements/helios``): what is free
of each, half hour by half hour, in May 2020. The first half of the month is learned from. In the
second, jobs of some workers arrive (``planners.systems.sas``), one worker goes to each of as
many nodes, and all wait for the slowest. How long that takes is read off what was really free.
Beside the ways of the product stands a policy: a network that scores nodes, trained by the
gradient of its reward in a gymnasium environment over the first half.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from advisor import data
from advisor.lab import frame
from advisor.lab.data import HELIOS
from advisor.planners.systems.sas import (
    RANDOM,
    Arrival,
    NodeHistory,
    completion_slots,
    judge,
    learn,
)

DAY = 48
HORIZON = 4 * DAY  # what is looked at of a job that does not end
AHEAD = (1, 6, 24)  # slots, of the forecasts that the policy sees
Shares = np.ndarray[Any, np.dtype[np.float64]]


def shares(folder: Path | None) -> Shares:
    """Return the free shares, a row a half hour, a column a node."""
    frame = HELIOS.read("shares", data.measurements(folder))
    table = frame.pivot(index="time", columns="node", values="free_fraction")
    return table.to_numpy(float)


def slots_of(path: Shares, nodes: tuple[int, ...], work: float) -> float:
    """Return what a job takes on nodes of which this was really free."""
    return float(completion_slots(path[None, :HORIZON], nodes, work)[0])


def features(history: NodeHistory, now: Shares, slot: int) -> Shares:
    """Return what the policy sees: a row a node."""
    ahead = history.forecast(now, slot, max(AHEAD))
    spread = history.shares.std(axis=0)
    columns = [now, *(ahead[k - 1] for k in AHEAD), history.usual.mean(axis=0), spread,
               history.persistence]  # fmt: skip
    return np.stack(columns, axis=1)


class Placing(gymnasium.Env[Shares, Shares]):
    """A job arrives, its nodes are chosen, it runs: one step an episode."""

    def __init__(self, history: NodeHistory, workers: int, work: float) -> None:
        self.history, self.workers, self.work = history, workers, work
        nodes = history.nodes
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (nodes, 4 + len(AHEAD)), float)
        self.action_space = gymnasium.spaces.MultiDiscrete([nodes] * workers)
        self.slot = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shares, dict[str, Any]]:
        """Return what is seen when the next job arrives."""
        super().reset(seed=seed)
        if options and "slot" in options:
            self.slot = int(options["slot"])
        else:
            self.slot = int(self.np_random.integers(0, len(self.history.shares) - HORIZON))
        return features(self.history, self.history.shares[self.slot], self.slot), {}

    def step(self, action: Shares) -> tuple[Shares, float, bool, bool, dict[str, Any]]:
        """Return the logarithm of the time on whole nodes over the time on those chosen."""
        path = self.history.shares[self.slot + 1 :]
        took = slots_of(path, tuple(int(k) for k in action), self.work)
        return np.zeros(self.observation_space.shape), -float(np.log(took / self.work)), True, \
            False, {}  # fmt: skip


def trained(history: NodeHistory, workers: int, work: float, updates: int) -> torch.nn.Module:
    """Return the policy after so many updates, each of 16 arrivals with 8 choices."""
    torch.manual_seed(0)
    env = Placing(history, workers, work)
    env.reset(seed=0)
    policy = torch.nn.Sequential(
        torch.nn.Linear(4 + len(AHEAD), 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(updates):
        losses = []
        for _ in range(16):
            seen, _ = env.reset()
            score = policy(torch.tensor(seen, dtype=torch.float32))[:, 0]
            picks = [_drawn(score, workers) for _ in range(8)]
            gains = torch.tensor([env.step(np.array(nodes))[1] for nodes, _ in picks])
            better = gains - gains.mean()  # of the same arrival: no critic is needed
            losses += [-gain * chance for gain, (_, chance) in zip(better, picks, strict=True)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return policy


def _drawn(score: torch.Tensor, workers: int) -> tuple[list[int], torch.Tensor]:
    """Return nodes drawn one after the other by their scores, and ln of their probability."""
    noise = -torch.log(-torch.log(torch.rand_like(score)))
    nodes = torch.topk(score.detach() + noise, workers).indices
    chance = torch.zeros(())
    left = torch.ones_like(score, dtype=torch.bool)
    for node in nodes:
        chance = chance + score[node] - torch.logsumexp(score[left], 0)
        left = left.clone()
        left[node] = False
    return nodes.tolist(), chance


def judged(seen: Shares, workers: int, work: float, updates: int) -> dict[str, Shares]:
    """Return slots of every job of the second half, by way of choosing."""
    half = len(seen) // 2 // DAY * DAY
    history = learn(seen[:half], day_slots=DAY)
    policy = trained(history, workers, work, updates)

    def learned(one: Arrival) -> tuple[int, ...]:
        with torch.no_grad():
            looked = torch.tensor(features(history, one.now, one.slot), dtype=torch.float32)
            return one.freest(policy(looked)[:, 0].numpy())

    return judge(
        history, seen[half:], workers=workers, work=work, others={"network policy": learned}
    )


def main() -> None:
    """Print mean slots by way, over the time on whole nodes."""
    asked = frame.options(__doc__, {
        "--data": Path, "--workers": [2, 4], "--work": ([6.0, 24.0], "half hours"),
        "--updates": 150, "--json": Path,
    })  # fmt: skip
    torch.set_num_threads(1)
    seen, found = shares(asked.data), []
    print("| workers | hours of work | way | mean h | median h | p90 h | against random |")
    for workers, work in itertools.product(asked.workers, asked.work):
        took = judged(seen, workers, work, asked.updates)
        plain = float(np.mean(took[RANDOM]))
        for name, slots in took.items():
            hours = np.array(slots) / 2.0
            mean, median, p90 = hours.mean(), np.median(hours), np.quantile(hours, 0.9)
            found.append({"workers": workers, "work_h": work / 2, "way": name, "jobs": len(slots),
                          "mean_h": float(mean), "median_h": float(median),
                          "p90_h": float(p90)})  # fmt: skip
            print(f"| {workers} | {work / 2:g} | {name} | {mean:.1f} | {median:.1f} | {p90:.1f} | "
                  f"{2 * mean / plain - 1:+.0%} |", flush=True)  # fmt: skip
    frame.write_json(asked.json, found)


if __name__ == "__main__":
    main()
