"""What a second thread gives a training step: the two constants of the device model, fitted.

    python -m advisor.lab.experiments.threads

The jobs of ``datasets/runs`` ran to their ends with one thread and with two, on a core each. What
two give over one by the device model (``planners.step.device``) stands beside what they gave, with
``split_gain`` and ``split_s`` as shipped, without either, and fitted by least absolute deviation
without the workload that is judged. Then the same of ``datasets/minutes``, which no fit has seen;
there the partial run says what one thread takes.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor import data
from advisor.machines.devices import device_parameters, processor
from advisor.planners.core.nouns import Device, Work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters
from advisor.records import RunRecord
from advisor.records.importers import minicloud
from advisor.records.importers.minicloud import hosts_of
from advisor.train.labelled import counted_work

GAINS = tuple(1.0 + 0.02 * n for n in range(21))
WAITS_S = (0.0, 2.5e-6, 5e-6, 1e-5, 1.5e-5, 2e-5, 3e-5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A job with one thread and with two; ``gave`` is how many times as fast two were."""

    workload: str
    job: str
    work: Work
    gave: float


def main() -> int:
    """Print the errors of ln(gain) as shipped, without the constants, and with fitted ones."""
    shipped = device_parameters()
    for name in ("runs", "minutes"):
        folder = data.root("datasets") / name
        host = hosts_of(folder).get("")  # rows of other machines are not looked at
        if host is None:
            print(f"{folder} has no host.json", file=sys.stderr)
            return 1
        records = minicloud.read_minicloud(folder)
        found = list(pairs([r for r in records if "machine" not in r.facts]))
        devices = processor(host, 1), processor(host, 2)
        gave = np.mean([pair.gave for pair in found])
        print(f"datasets/{name}: {len(found)} jobs; two threads gave {gave:.2f} on average")
        print("| constants | mean error | bias |")
        print("|---|---|---|")
        for words, constants in (
            ("neither", replace(shipped, split_gain=1.0, split_s=0.0)),
            (f"as shipped: {shipped.split_gain:g}, {shipped.split_s * 1e6:g} us", shipped),
        ):
            say(words, [error(pair, devices, constants) for pair in found])
        say("a constant gain, the others' mean", list(of_a_constant(found)))
        if name == "runs":
            say("fitted without the workload", list(left_out(found, devices, shipped)))
    return 0


def pairs(records: Iterable[RunRecord]) -> Iterable[Pair]:
    """Yield the jobs that were run with two threads, and with one: in whole, else in part."""
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    jobs, partial = {}, {}
    for run in records:
        if run.status == "ok" and run.instances == 1 and not run.facts.get("is_noisy"):
            jobs[run.job.job_id] = run.job
            times[run.job.job_id][run.configuration[0].instance_type].append(run.time_s or 0.0)
            if run.anchor is not None:
                partial[run.job.job_id] = run.anchor.time_s
    for name, by in sorted(times.items()):
        alone = by.get("core-1") or [partial[name]]
        if "cores-2" in by:
            gave = statistics.median(alone) / statistics.median(by["cores-2"])
            work = counted_work(jobs[name])
            yield Pair(workload=jobs[name].family, job=name, work=work, gave=gave)


def error(pair: Pair, devices: Sequence[Device], constants: DeviceParameters) -> float:
    """Return ln of what the device model says two threads give over what they gave."""
    columns = step_time(pair.work, list(devices), [pair.work.micro_batch], constants)
    one, two = (columns.micro_batch_s[:, 0] + columns.optimizer_s).tolist()
    return float(np.log(one / two / pair.gave))


def of_a_constant(found: Sequence[Pair]) -> Iterable[float]:
    """Yield the errors of one gain for all, the mean of the other workloads' jobs."""
    for pair in found:
        others = [np.log(one.gave) for one in found if one.workload != pair.workload]
        yield float(np.mean(others) - np.log(pair.gave))


def left_out(
    found: Sequence[Pair], devices: Sequence[Device], shipped: DeviceParameters
) -> Iterable[float]:
    """Yield each job's error with the constants that serve the other workloads best."""
    grid = list(itertools.product(GAINS, WAITS_S))
    errors = np.array([
        [error(pair, devices, replace(shipped, split_gain=gain, split_s=wait)) for pair in found]
        for gain, wait in grid
    ])  # fmt: skip
    groups = np.array([pair.workload for pair in found])
    best = int(np.argmin(np.abs(errors).mean(axis=1)))
    print(f"(of all together: {grid[best][0]:.2f}, {grid[best][1] * 1e6:g} us)")
    for place, group in enumerate(groups):
        others = np.abs(errors[:, groups != group]).mean(axis=1)
        yield float(errors[int(np.argmin(others)), place])


def say(name: str, errors: Sequence[float]) -> None:
    print(f"| {name} | {np.mean(np.abs(errors)):.3f} | {np.mean(errors):+.3f} |")


if __name__ == "__main__":
    sys.exit(main())
