"""Protocols of shared clusters, and of what saves, restarts and faults cost there.

- ``queue``: outputs of Tiresias' own simulator, with the jobs that it ran. With the published
  slips repeated (``as_published``) every completion time should be equal; without them 2D-LAS
  within 1 %.
- ``availability``: the earlier half of Helios' May is known; in the later half jobs arrive, each
  goes to the nodes that ``advisor simulate availability`` would have named, and takes what was
  really free.
- ``colocation``: Gavel's pairs of jobs on one GPU; the other pairs on the GPU are the file of
  ``advisor advise RUN --beside OTHER --pairs FILE``.
- ``failures``: what saves, restarts and faults cost, against what was published of them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from advisor.advice.neighbours import kept_by_pairs
from advisor.errors import ModelError
from advisor.lab.data import FAILURES, GAVEL, HELIOS, PARCAE, POLLUX_QUEUE, TIRESIAS
from advisor.lab.score import baselines
from advisor.lab.score.harness import Answers, Blinded, Floats, Protocol, Questions, by
from advisor.lab.score.scores import Scores
from advisor.planners.core.errors import HOUR_S, PlanningError
from advisor.planners.goodput import (
    BYTES_PER_PARAMETER,
    NODE_BYTES_PER_S,
    RESTART_AFTER_ADDITION_S,
    EdgeFaultTolerance,
    expected_completion,
    restart_after_removal_s,
    save_s,
)
from advisor.planners.queueing.engine import JobTable, Policy, QueueParameters, SharedCluster
from advisor.planners.queueing.simulator import simulate_queue
from advisor.planners.spot.availability import Spells, SpotJob, replay
from advisor.planners.systems.free_shares import Shares, learn
from advisor.planners.systems.node_choices import (
    BEST,
    LEARNED,
    RANDOM,
    WAYS,
    Way,
    arrivals,
    chosen_of,
    folds_of,
    judge,
    judged_ways,
    learned_policy,
)
from advisor.planners.systems.sas import completion_slots, placement
from advisor.planners.systems.switchflow import MeasuredPair, fit, rates_by_pairs, shared_rates
from advisor.records.importers.node_shares import helios_shares

if TYPE_CHECKING:
    import pandas as pd

Key = TypeVar("Key", bound=Hashable)


# queue

# Their names -> ours.
POLICY_OF: Final[Mapping[str, Policy]] = {
    "fifo": "fifo", "fjf": "fit-first", "shortest": "shortest", "shortest-gpu": "shortest-gpu",
    "dlas": "las", "dlas-gpu": "las-2d", "dlas-gpu-gittins": "gittins",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """One output of the published simulator: its jobs on a cluster, under one policy."""

    name: str
    cluster: SharedCluster
    policy: Policy
    jobs: JobTable
    theirs: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    outputs: list[_Output]
    samples: tuple[float, ...]
    data: Path


def read_queue(data: Path) -> Questions:
    """Return every job of every output.

    Raises ModelError if there is no output to compare with.
    """
    samples: tuple[float, ...] = ()
    if TIRESIAS.has("service_samples", data):
        told = TIRESIAS.read("service_samples", data)["duration_s"]
        samples = tuple(told.astype(float).tolist())
    outputs = []
    of_run = ["run", "nodes", "devices_per_node", "policy"]
    for key, rows in TIRESIAS.read("completions", data).groupby(of_run, sort=False):
        name, nodes, devices, published = (str(part) for part in key)
        policy = POLICY_OF.get(published)
        if policy is None or (policy == "gittins" and not samples):
            continue
        jobs = JobTable(
            submit_s=rows["submit_s"].to_numpy(float),
            devices=rows["devices"].to_numpy(np.int64),
            duration_s=rows["duration_s"].to_numpy(float),
        )
        outputs.append(
            _Output(
                name=name, policy=policy, jobs=jobs, theirs=rows["completion_s"].to_numpy(float),
                cluster=SharedCluster(nodes=int(nodes), devices_per_node=int(devices)),
            )
        )  # fmt: skip
    if not outputs:
        raise ModelError(
            f"no policy of ours in {TIRESIAS.title}", hint="name the data with --data"
        )
    names = [o.name for o in outputs for _ in o.theirs]
    return Questions(
        questions=[f"completion of a job under {name}" for name in names],
        truth=np.concatenate([o.theirs for o in outputs]),
        unseen=["nothing is fitted"] * len(names),
        groups=by(names, is_sorted=False),
        facts=_Queue(outputs=outputs, samples=samples, data=data),
    )


def _queue_answers(rows: Questions) -> Answers:
    facts: _Queue = rows.facts
    ours, corrected = (
        [
            simulate_queue(
                o.jobs,
                o.cluster,
                o.policy,
                parameters=QueueParameters(service_samples=facts.samples, as_published=flag),
            ).completion_s
            for o in facts.outputs
        ]
        for flag in (True, False)
    )
    both = zip(corrected, facts.outputs, strict=True)
    means = [abs(plain.mean() / o.theirs.mean() - 1) for plain, o in both]
    exact = [np.array_equal(a, o.theirs) for a, o in zip(ours, facts.outputs, strict=True)]
    return Answers(
        value=np.concatenate(ours),
        others={"without the published slips": np.concatenate(corrected)},
        figures={
            "runs": len(facts.outputs),
            "runs_equal_job_by_job": sum(exact),
            "largest_error_of_a_mean_without_the_slips": float(max(means)),
            **mean_errors(facts.data),
        },
    )


# Pollux's authors simulated Tiresias on 16 nodes of 4 GPUs at several loads. What a job of an
# application takes on so many GPUs at a batch size is taken as the median at load 0.5, where few
# wait (so it still holds a little waiting); then loads 1.0 to 2.0 are simulated. Their rounds of a
# minute and restarts of 30 s stand in ``preemption_s``, their two queues part at 16 GPU-hours.
POLLUX_CLUSTER: Final = SharedCluster(nodes=16, devices_per_node=4)
POLLUX_PARAMETERS: Final = QueueParameters(limits=(16 * 3600.0,), preemption_s=60.0)
LEARNT_LOAD: Final = 0.5
LOADS: Final = (1.0, 1.5, 2.0)
Job = tuple[tuple[str, int, int], float, int, float]  # kind, submit [s], devices, completion [s]


def mean_errors(data: Path) -> dict[str, float]:
    """Return the error of the mean completion by load; empty where the tables are not there."""
    if not POLLUX_QUEUE.is_in(data):
        return {}
    completions = POLLUX_QUEUE.read("completions", data)
    learnt = [j for jobs in _jobs(completions, LEARNT_LOAD).values() for j in jobs]
    if not learnt:
        return {}
    seconds = _medians((kind, took) for kind, _, _, took in learnt)
    service = _medians((kind[0], devices * took) for kind, _, devices, took in learnt)
    errors = {}
    for load in LOADS:
        simulated, theirs = [], []
        for jobs in _jobs(completions, load).values():
            jobs.sort(key=lambda job: job[1])
            kinds, submit, devices, took = zip(*jobs, strict=True)
            # A kind that half load never had takes its application's usual service.
            lengths = [
                seconds.get(kind, service.get(kind[0], 0.0) / count)
                for kind, count in zip(kinds, devices, strict=True)
            ]
            workload = JobTable(
                submit_s=np.array(submit),
                devices=np.array(devices, np.int64),
                duration_s=np.array(lengths),
            )
            run = simulate_queue(workload, POLLUX_CLUSTER, "las-2d", parameters=POLLUX_PARAMETERS)
            simulated.append(run.completion_s.mean())
            theirs.append(np.mean(took))
        if theirs:
            error = float(np.mean(simulated) / np.mean(theirs) - 1)
            errors[f"pollux_tiresias_mean_error_load_{load}"] = error
    return errors


def _jobs(completions: pd.DataFrame, load: float) -> dict[str, list[Job]]:
    """Return the jobs of a load by workload."""
    found: dict[str, list[Job]] = defaultdict(list)
    for row in completions[completions["load"] == load].to_dict("records"):
        kind = (str(row["application"]), int(row["devices"]), int(row["batch"]))
        took = float(row["completion_s"])
        found[str(row["workload"])].append((kind, float(row["submit_s"]), kind[1], took))
    return found


def _medians(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    groups: dict[Key, list[float]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return {key: statistics.median(values) for key, values in groups.items()}


QUEUE: Final = Protocol(
    name="queue",
    description="completion times against Tiresias' simulator",
    senses={
        "runs": "more",
        "runs_equal_job_by_job": "more",
        "largest_error*": "lower",
        "pollux_tiresias_mean_error*": 0.0,
    },
    rows=read_queue,
    answer=_queue_answers,
    seen=(
        "the slips of the published simulator that are repeated: found by comparing with these "
        "outputs",
        "nothing is fitted",
    ),
    notes=("no interval: a simulation of known jobs has none",),
)


# availability

DAY: Final = 48  # half hours
CHOSEN_BY_PAST: Final = "best on days before"
WORK_H: Final = (3.0, 12.0)
WORKERS: Final = (2, 4)
_KINDS: Final = [(workers, work_h) for workers in WORKERS for work_h in WORK_H]


def read_availability(data: Path) -> Questions:
    """Return jobs that arrive in the later half of the month, and what each took [slots].

    The time that a job took is that on the nodes which the product's own choice named.

    Raises AbsentDataError if the table is not there.
    """
    shares = helios_shares(HELIOS.read("shares", data)).shares
    half, quarter = (len(shares) // k // DAY * DAY for k in (2, 4))
    names: list[str] = []
    said, took, past = [], [], []
    for workers, work_h in _KINDS:
        before = _played(shares[:quarter], shares[quarter:half], workers, 2.0 * work_h)
        later = _played(shares[:half], shares[half:], workers, 2.0 * work_h)
        names += [f"{workers} workers, {work_h:g} h"] * len(later)
        said += [one for one, _ in later]
        took += [one for _, one in later]
        past += [float(np.median([one for _, one in before]))] * len(later)
    return Questions(
        questions=[f"half hours of a job of {name} on nodes chosen for it" for name in names],
        truth=np.array(took),
        unseen=["the later half of the month"] * len(names),
        groups=by(names, is_sorted=False),
        facts={"shares": shares, "said": np.array(said), "past": np.array(past)},
    )


def _played(known: Shares, later: Shares, workers: int, work: float) -> list[tuple[float, float]]:
    """Return what was said of every arrival, and what it took [slots]."""
    history, choose = learn(known, day_slots=DAY), _way(known, workers, work)
    return [
        (
            placement(one.possible, nodes, work).slots,
            float(completion_slots(path[None], nodes, work)[0]),
        )
        for one, path in arrivals(history, later, workers=workers, work=work)
        for nodes in (choose(one),)
    ]


def _way(known: Shares, workers: int, work: float) -> Way:
    """Return the way of choosing that ``advisor simulate availability`` takes at that time."""
    try:
        folds = folds_of(known, day_slots=DAY, workers=workers, work=work)
        name = chosen_of(judged_ways(folds, workers=workers, work=work))
    except PlanningError:
        name = chosen_of({})
    if name in WAYS:
        return WAYS[name]
    return learned_policy(learn(known, day_slots=DAY), workers=workers, work=work)


def _choice_figures(rows: Questions, _answers: Answers) -> dict[str, float]:
    """Return mean hours by way of choosing nodes."""
    shares = rows.facts["shares"]
    figures: dict[str, float] = {}
    half = len(shares) // 2 // DAY * DAY
    history = learn(shares[:half], day_slots=DAY)
    for workers, work_h in _KINDS:
        work = 2.0 * work_h
        took = judge(
            history, shares[half:], workers=workers, work=work,
            others={LEARNED: learned_policy(history, workers=workers, work=work),
                    CHOSEN_BY_PAST: _way(shares[:half], workers, work)},
        )  # fmt: skip
        mean = {way: float(np.mean(slots)) / 2 for way, slots in took.items()}
        name = f"{workers} workers, {work_h:g} h"
        figures |= {f"{name}, {way}: mean h": hours for way, hours in mean.items()}
        gap = (mean[RANDOM] - mean[CHOSEN_BY_PAST]) / (mean[RANDOM] - mean[BEST])
        figures[f"{name}: share of the way from any nodes to the best"] = gap
    return figures


AVAILABILITY: Final = Protocol(
    name="availability",
    description="hours of jobs on nodes of a shared cluster, later half of the month",
    senses={
        "*: share of the way*": "higher",
        "*best on days before: mean h": "lower",
        "*mean h": "neutral",
    },
    rows=read_availability,
    answer=lambda rows: Answers(value=rows.facts["said"]),
    seen=("the ways of choosing that are there to choose from", "the form of the forecast"),
    baselines={"as the jobs before": baselines.same_as("past")},
    by_group=True,
    figures=_choice_figures,
    notes=(
        f"figures: mean hours by way of choosing nodes; the product's is '{CHOSEN_BY_PAST}'",
        "'as the jobs before': the median of what its jobs took in the second week",
        "no interval: a month of one cluster has too few days to calibrate one",
    ),
)


# colocation

_SOURCE: Final = "oracle_motivation"
COVERAGE: Final = 0.9  # of the intervals that are asked for


def read_colocation(data: Path) -> Questions:
    """Return what each job keeps of its rate in every pair; facts are the pairs by device.

    Raises AbsentDataError if the table is not there. Raises ModelError if it has no pair to leave
    out.
    """
    frame = GAVEL.read("pairs", data)
    frame = frame[(frame["source"] == _SOURCE) & (frame["fits"] == 1)]
    pairs = {
        str(name): [
            MeasuredPair(
                first=str(row["first"]), second=str(row["second"]),
                first_rate=float(row["first_rate"]), second_rate=float(row["second_rate"]),
            )
            for row in rows.to_dict("records")
        ]
        for name, rows in frame.groupby("accelerator")
    }  # fmt: skip
    if not pairs:
        raise ModelError(
            f"no pairs of jobs in {GAVEL.title}", hint="name their folder with --data"
        )
    asked = [(name, *one) for name, own in pairs.items() for p in own for one in _both_ways(p)]
    return Questions(
        questions=[f"share of its rate that {a} keeps beside {b} on one {g}"
                   for g, a, b, _ in asked],
        truth=np.array([rate for *_, rate in asked]),
        unseen=[f"the pair {a}, {b} on {g}" for g, a, b, _ in asked],
        groups=by(g for g, *_ in asked),
        facts=pairs,
    )  # fmt: skip


def _both_ways(p: MeasuredPair) -> list[tuple[str, str, float]]:
    """Return (job, the other, rate), once for a job beside itself."""
    sides = [(p.first, p.second, p.first_rate), (p.second, p.first, p.second_rate)]
    return sides[:1] if p.first == p.second else sides


def _pairs_say(say: Any) -> Any:
    def rule(rows: Questions, _answered: Any = None) -> Floats:
        """Ask of every pair, the others on its GPU known."""
        found: list[Any] = []
        for pairs in rows.facts.values():
            for at, pair in enumerate(pairs):
                both = say(pairs[:at] + pairs[at + 1 :], pair)
                found += both[:1] if pair.first == pair.second else both
        return np.array(found, float)

    return rule


def _verb(others: list[MeasuredPair], pair: MeasuredPair) -> list[tuple[float, float, float]]:
    """Return rate, low and high of both, as ``advise --beside RUN --pairs FILE`` has them."""
    kept = kept_by_pairs(others, pair.first, pair.second, COVERAGE)
    if kept is None:
        return [(np.nan, np.nan, np.nan)] * 2
    return list(zip(*kept, strict=True))


def _law(others: list[MeasuredPair], pair: MeasuredPair) -> list[float]:
    known = fit(others)
    rates = shared_rates([known[name] for name in (pair.first, pair.second)])
    return [float(rate) for rate in rates]


def _strangers(others: list[MeasuredPair], pair: MeasuredPair) -> list[float]:
    own = {pair.first, pair.second}
    known = [p for p in others if {p.first, p.second}.isdisjoint(own)]
    return [float(rate) for rate in rates_by_pairs(known, pair.first, pair.second)[0]]


def _nearest(others: list[MeasuredPair], pair: MeasuredPair) -> list[float]:
    """Return the mean of ln(rate) by the two jobs most alike, each way, in the others' matrix."""
    sides = [side for p in others for side in _both_ways(p)]
    names = sorted({name for job, other, _ in sides for name in (job, other)})
    place = {name: k for k, name in enumerate(names)}
    logs = np.full((len(names), len(names)), np.nan)
    for job, other, rate in sides:
        logs[place[job], place[other]] = np.log(rate)
    both = np.hstack([logs, logs.T])
    apart = both[:, None] - both
    distance = np.sqrt(np.nanmean(apart**2, axis=2))

    def of(job: int, beside: int) -> float:
        said, weight = [], []
        for table, me, there in ((logs, job, beside), (logs.T, beside, job)):
            known = [
                k for k in np.argsort(distance[me]) if k != me and np.isfinite(table[k, there])
            ]
            for k in known[:2]:
                said.append(table[k, there] + np.nanmean(table[me] - table[k]))
                weight.append((distance[me, k] + 1e-3) ** -2)
        return float(np.exp(np.average(said, weights=weight)))

    a, b = place[pair.first], place[pair.second]
    return [of(a, b), of(b, a)]


def _median_rate(others: list[MeasuredPair], _pair: MeasuredPair) -> tuple[float, float]:
    middle = float(np.median([rate for p in others for _, _, rate in _both_ways(p)]))
    return middle, middle


def _factors(others: list[MeasuredPair], pair: MeasuredPair) -> tuple[float, float]:
    """Return ln(rate) = victim + aggressor, least squares: what is known as sensitivity models."""
    sides = [side for p in others for side in _both_ways(p)]
    names = sorted({name for job, other, _ in sides for name in (job, other)})
    place = {name: k for k, name in enumerate(names)}
    design = np.zeros((len(sides), 2 * len(names)))
    for row, (job, other, _) in enumerate(sides):
        design[row, place[job]] = design[row, len(names) + place[other]] = 1.0
    logs = np.log([rate for _, _, rate in sides])
    solved, *_ = np.linalg.lstsq(design, logs, rcond=None)
    victim = dict(zip(names, solved[: len(names)], strict=True))
    aggressor = dict(zip(names, solved[len(names) :], strict=True))
    middle = float(np.mean(logs)) / 2.0  # of a job in no other pair

    def rate(job: str, other: str) -> float:
        return float(np.exp(victim.get(job, middle) + aggressor.get(other, middle)))

    return rate(pair.first, pair.second), rate(pair.second, pair.first)


def _colocation_answers(rows: Questions) -> Answers:
    rate, low, high = _pairs_say(_verb)(rows).T
    return Answers(value=rate, low=low, high=high)


def _colocation_figures(rows: Questions, _answers: Answers) -> dict[str, float]:
    unseen = Answers(value=_pairs_say(_strangers)(rows)).scores(rows.truth)
    found = unseen.named("the two jobs in no other pair, ", "MAPE", "median APE")
    for share in _KEPT_SHARES:
        few = _few_known(rows, share)
        named = few.named(
            f"{share:.0%} of the other pairs known, ", "MAPE", "median APE", "coverage"
        )
        found |= named
    return found


# Of all pairs, what somebody has measured who has not measured nearly all.
_KEPT_SHARES: Final = (0.5, 0.25)


def _few_known(rows: Questions, share: float) -> Scores:
    """Score with a part of each GPU's pairs known, drawn once."""
    drawn = np.random.default_rng(0)
    kept = {
        id(pair): bool(is_kept)
        for pairs in rows.facts.values()
        for pair, is_kept in zip(pairs, drawn.random(len(pairs)) < share, strict=True)
    }

    def say(others: list[MeasuredPair], pair: MeasuredPair) -> Any:
        return _verb([p for p in others if kept[id(p)]], pair)

    rate, low, high = _pairs_say(say)(rows).T
    return Answers(value=rate, low=low, high=high).scores(rows.truth)


COLOCATION: Final = Protocol(
    name="colocation",
    description="rates of two jobs on one GPU over their rates alone, each pair left out",
    rows=read_colocation,
    answer=_colocation_answers,
    scores="what `advisor advise --beside RUN --pairs FILE` answers",
    seen=(
        "the form of the law, and the least slowdown that is told from none",
        "what neighbours correct (rates, not their logarithms), how many of them, and the priors "
        "of their spread",
        "each job beside other jobs on the same GPU",
    ),
    baselines={
        "constant": _pairs_say(_median_rate),
        "aggressor x victim": _pairs_say(_factors),
        "the law alone": _pairs_say(_law),
        "two nearest neighbours in the matrix of pairs": _pairs_say(_nearest),
        "half each": lambda rows, _: np.full(rows.truth.size, 0.5),
    },
    by_group=True,
    figures=_colocation_figures,
    notes=(
        "rows: a job in a pair; a pair of one job with itself is one row",
        "'the two jobs in no other pair': the mean job of the GPU stands for both",
        "nobody has published two recordings with what they kept of their rates on a GPU: "
        "`--beside` without `--pairs` is scored on no row",
    ),
)


# failures

LEARNT_NODES: Final = 8
REMOVAL: Final = "Parcae, restart after a removal"
ADDITION: Final = "Parcae, restart after an addition"
SAVE: Final = "BigScience, save"
PLATEAU: Final = "ResNet101, plateau after a fault"
# BigScience's notes: parameters, nodes, the middle of 18 to 20 s.
SAVES: Final = ((25e9, 8, 19.0), (181e9, 64, 19.0))
# THORN-ML's slides: 10 epochs of up to 80 s between checkpoints, accuracy flat for about 13
# minutes after one fault; it is put just before a checkpoint, and replayed.
EPOCH_S: Final = 80.0
PLATEAU_S: Final = 13 * 60.0
EFFECTIVE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standstills:
    removal: Floats  # of Parcae's restarts (V100, 10 Gb/s): nodes and seconds, shape (n, 2)
    addition: Floats
    interruptions: Any  # Llama 3's table


def read_failures(data: Path) -> Questions:
    """Return standstills in seconds: restarts on more than eight nodes, saves, one fault.

    Raises ModelError if the tables are not there.
    """
    table = PARCAE.read("restarts", data)
    kinds = {
        kind: table[table["kind"] == kind][["nodes", "restart_s"]].to_numpy(float)
        for kind in ("removal", "addition")
    }
    facts = _Standstills(**kinds, interruptions=FAILURES.read("interruptions", data).iloc[0])
    truth = {
        REMOVAL: _beyond(facts.removal)[:, 1],
        ADDITION: _beyond(facts.addition)[:, 1],
        SAVE: np.array(SAVES)[:, 2],
        PLATEAU: np.array([PLATEAU_S]),
    }
    names = [name for name, values in truth.items() for _ in values]
    return Questions(
        questions=[f"seconds of: {name}" for name in names],
        truth=np.concatenate(list(truth.values())),
        unseen=[f"restarts on more than {LEARNT_NODES} nodes, the other save"] * len(names),
        groups=by(names, is_sorted=False),
        facts=facts,
    )


def _failure_answers(rows: Questions) -> Answers:
    removal, addition = rows.facts.removal, rows.facts.addition
    saves = np.array(SAVES)
    return Answers(
        value=np.concatenate(
            [
                restart_after_removal_s(_beyond(removal)[:, 0]),
                np.full(len(_beyond(addition)), RESTART_AFTER_ADDITION_S),
                _saves_s(np.full(len(saves), NODE_BYTES_PER_S)),
                [plateau_s()],
            ]
        ),
        figures={
            "resnet101_plateau_min": plateau_s() / 60, **_llama3(rows.facts.interruptions)
        },
    )  # fmt: skip


def _blind_failures(rows: Questions, _data: Path) -> Blinded:
    """Answer by laws of up to 8 nodes, and each save by the other one's rate of a node."""
    rates = [p * BYTES_PER_PARAMETER / nodes / seconds for p, nodes, seconds in SAVES]
    others = np.array([np.mean(rates[:i] + rates[i + 1 :]) for i in range(len(rates))])
    removal, addition = rows.facts.removal, rows.facts.addition
    design = np.stack([np.ones(len(removal)), np.sqrt(removal[:, 0])], axis=1)
    is_known = removal[:, 0] <= LEARNT_NODES
    root_law = np.linalg.lstsq(design[is_known], removal[is_known, 1], rcond=None)[0]
    flat = addition[addition[:, 0] <= LEARNT_NODES, 1].mean()
    return Blinded(
        answers=Answers(
            value=np.concatenate(
                [
                    design[~is_known] @ root_law,
                    np.full(len(_beyond(addition)), flat),
                    _saves_s(others),
                    [plateau_s()],
                ]
            )
        ),
        changed=(
            "restarts: the law and the mean of up to 8 nodes",
            "what a node writes per second: from BigScience's other save",
        ),
        still_seen=("the root in the law of Parcae's restarts: chosen with all points in sight",),
    )


def _saves_s(node_bytes_per_s: Floats) -> Floats:
    saves = np.array(SAVES)
    return save_s(
        saves[:, 0] * BYTES_PER_PARAMETER, nodes=saves[:, 1], bytes_per_s=node_bytes_per_s
    )


def plateau_s() -> float:
    """Return how long the job's progress stands still after a fault just before a checkpoint."""
    job = SpotJob(work_s=50 * EPOCH_S, restart_s=0.0, checkpoint_interval_s=10 * EPOCH_S)
    up = np.array([20 * EPOCH_S - 1.0, 1e6])
    fault = Spells(up_start_s=np.array([0.0, up[0]]), up_length_s=up, end_s=float(up.sum()))
    return float(replay(fault, job, [0.0]).finish_s[0]) - job.work_s


def _beyond(restarts: Floats) -> Floats:
    """Return the rows on more nodes than ``--blind`` learns from."""
    return restarts[restarts[:, 0] > LEARNT_NODES]


def _llama3(table: Any) -> dict[str, float]:
    """Return what one of Llama 3's interruptions may cost for "over 90 % effective" time.

    Expected is what the model says at a checkpoint every 10 minutes and a restart of 12.
    """
    devices, days = float(table["accelerators"]), float(table["days"])
    between_h = days * 24 / float(table["interruptions_of_all"])

    def effective(edge: EdgeFaultTolerance | None = None) -> float:
        found = expected_completion(
            days * 24 * HOUR_S, devices=devices, checkpoint_s=5.0, detection_s=0.0,
            restart_s=720.0, checkpoint_interval_s=600.0, edge=edge,
            failures_per_device_h=1.0 / (between_h * devices),
        )  # fmt: skip
        return 1.0 / (1.0 + float(found.overhead_fraction[0]))

    return {
        "llama3_hours_between_interruptions": between_h,
        "llama3_most_lost_minutes_an_interruption": (1.0 - EFFECTIVE) * between_h * 60.0,
        "llama3_effective_fraction_expected": effective(),
        "llama3_effective_fraction_with_a_second_path": effective(EdgeFaultTolerance()),
    }


FAILURE: Final = Protocol(
    name="failures",
    description="standstills of saves, restarts and faults, in seconds",
    senses={"*": "neutral"},
    rows=read_failures,
    answer=_failure_answers,
    seen=(
        "the root law of Parcae's restarts and the mean after additions: fitted on all points",
        "what a node writes per second: from BigScience's notes, which are also scored",
    ),
    blind=_blind_failures,
    notes=("no interval: a standstill has none",),
)
