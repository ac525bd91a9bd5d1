"""The physics of ``advisor recommend`` for collected runs with several threads.

With one thread such a run takes the anchor's time over the share of a core: any model of a
device says so, since both are the same silicon. With several it is not so simple: what a second
core adds depends on how much of a step is arithmetic and how much is memory traffic. What is
learned must be left over from the very physics that is corrected later, so these runs get the
device model's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from advisor.machines import device_parameters, processor
from advisor.planners.core import Operator, OperatorKind, Operators, Phase, Work
from advisor.planners.step import step_time
from advisor.records import COUNTED, JobFacts, RunRecord, hosts_of

_COLLECTED: Final = "minicloud"  # what ``advisor collect`` made: a format and a source


def with_device_physics(records: Sequence[RunRecord], path: Path) -> list[RunRecord]:
    """Return collected runs with ``analytic_time_s`` as the device model has it.

    Parameters
    ----------
    records : sequence of RunRecord
        As ``records.importers`` reads them; others, and runs with one thread a machine, are
        returned as they are.
    path : Path
        Of the runs: ``host.json`` beside them describes the machine that they were made on, or
        several files each of one. What was made on no such machine is returned as it is, and
        physics is the share of the cores.
    """
    is_collected = any(record.source == _COLLECTED for record in records)
    hosts = hosts_of(path) if is_collected else {}
    if not hosts:
        return list(records)
    constants = device_parameters()
    speedups: dict[tuple[str, int], float] = {}
    found = []
    for record in records:
        threads = int(float(record.layout.get("threads", 1.0)))
        host = hosts.get(str(record.facts.get("machine", "")))
        if (
            record.source != _COLLECTED
            or threads < 2
            or record.anchor is None
            or record.instances > 1
            or host is None
        ):
            found.append(record)
            continue
        key = (record.job.job_id, threads)
        if key not in speedups:
            work = counted_work(record.job)
            pair = [processor(host, n) for n in (1, threads)]
            columns = step_time(work, pair, [work.micro_batch], constants)
            one, several = (columns.micro_batch_s[:, 0] + columns.optimizer_s).tolist()
            speedups[key] = one / several
        found.append(_carried(record, speedups[key], threads))
    return found


def _carried(record: RunRecord, speedup: float, threads: int) -> RunRecord:
    """Return the record with the anchor's time over what its threads and its share of time give.

    Threads that share fewer cores than they are run one after the other: they add nothing.
    """
    assert record.anchor is not None  # the caller's condition
    machines = record.configuration[0]
    granted = float(machines.vcpus or threads)
    cores = float(machines.facts.get("cores", threads))
    rate = granted if cores < threads else speedup * granted / threads
    facts = {**record.facts, "analytic_time_s": record.anchor.time_s / max(rate, 1e-9)}
    return replace(record, facts=facts)


def counted_work(job: JobFacts) -> Work:
    """Return the counted step as work: an operator for each phase and class."""
    facts = {name: float(v) for name, v in job.facts.items() if not isinstance(v, str)}
    operators = []
    phases: tuple[Phase, ...] = get_args(Phase)
    kinds: tuple[OperatorKind, ...] = get_args(OperatorKind)
    for phase in phases:
        for kind in kinds:
            calls, flop, moved = (facts.get(f"{what}_{phase}_{kind}", 0.0) for what in COUNTED)
            if calls > 0:
                operators.append(Operator(
                    name=kind, kind="optimizer" if phase == "optimizer" else kind, phase=phase,
                    count=calls, flop=flop, bytes=moved,
                ))  # fmt: skip
    batch = max(round(facts.get("batch", 1.0)), 1)
    parameters = int(facts.get("parameters", 0.0))
    return Work(
        operators=Operators.of(operators),
        micro_batch=batch,
        parameters=parameters,
        trainable_parameters=parameters,
        parameter_bytes=int(facts.get("parameter_bytes", 4.0 * parameters)),
        optimizer_state_bytes=int(facts.get("optimizer_state_bytes", 0.0)),
        saved_bytes_per_sample=facts.get("saved_bytes", 0.0) / batch,
    )
