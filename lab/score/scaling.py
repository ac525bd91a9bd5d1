"""Protocols of more machines than are known: ``scaling`` and its kin.

- ``scaling``: an application's steps on at most four GPUs are its real runs (``advisor runs actual
  RUN --cluster 2x2xT4@50Gbps --batch 256 --step-time 310ms``); its larger are asked of
  ``Predictor.step_columns`` (``estimate.knowledge.own_runs``). Placements of unlike shares of
  machines, which nobody rents, are neither known nor asked.
- ``scaling-nominal``: told the step on one GPU, the size of the gradients and the links as sold;
  the planner's constants are fitted without the scored cluster. Applications of unknown gradients,
  or without a step on one GPU, cannot be asked.
- ``series-mlperf``: pairs of submissions of one round, organisation, benchmark and accelerator;
  the smallest system's step is all that is known (``--runs`` with ``machine,count,step,batch``).
  Systems with fewer samples than accelerators are not asked, since what nothing is known of is
  taken to train data parallel, nor is one accelerator the smallest system: that says nothing of
  several.
- ``cluster``, ``series``: peers over the internet (``advisor simulate peers``, and with
  ``--running``), with constants fitted without the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.estimate import case
from advisor.estimate.knowledge.known import job_from_runs
from advisor.estimate.unlike.peers import FittedRate, PeerModel
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.runs import Actual
from advisor.lab.data import MLPERF, SIA
from advisor.lab.fit.peers import PeerRows, fitted_rate, read_rows
from advisor.lab.fit.scaling import (
    INPUT_BOUND,
    KNOWN_CLUSTERS,
    ClusterRuns,
    fit_without_each,
    one_device_s,
    read_clusters,
    uncalibrated,
)
from advisor.lab.score import baselines
from advisor.lab.score.asked import predictor, step_on
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, Rule, by
from advisor.lab.score.raw import RawColumns
from advisor.lab.score.scores import Sense, score
from advisor.machines.cluster import one_group
from advisor.machines.devices import suite_device
from advisor.machines.fleet import own_fleet
from advisor.planners.core.nouns import Device, Work
from advisor.planners.core.setup import Transformer
from advisor.planners.links.collectives import ring_all_reduce_s
from advisor.planners.links.gradients import ScalingParameters
from advisor.planners.links.scaling import MeasuredPlacements, Placements
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.systems.internet_peers import rate_after_a_minute, rate_of_parts

if TYPE_CHECKING:
    import pandas as pd

FEW: Final = 4  # GPUs of which everything is known
FAR: Final = 3  # times the largest known size: beyond, what grows with scale is not seen
# Machines of the clusters as --cluster takes them, devices in front: SOURCE.md, Sia's section 4.2.
MACHINES: Final = {
    "aws": "T4:pcie@50Gbps",
    "rtx": "RTX-2080-Ti:pcie@50Gbps",
    "dgx-ext": "A100-40GB:nvlink@1600Gbps",
}
# Of a sample: BERT-base on SQuAD; ResNet-18 on CIFAR-10; ResNet-50. Others are not public.
_NETWORKS: Final = {
    "cifar10": "32:64:2x64,2x128,2x256,2x512:basic::10",
    "imagenet": "224:64:3x256,4x512,6x1024,3x2048:bottleneck",
}
_BERT: Final = Transformer(layers=12, hidden=768, heads=12, sequence=384, vocabulary=30_522)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One application on one cluster: what is known of it, and what is asked."""

    cluster: str
    name: str
    known: MeasuredPlacements
    wanted: MeasuredPlacements
    gradient_bytes: float | None

    @property
    def alone_s(self) -> Floats | None:
        return one_device_s(self.known, self.wanted.placements)


def _application_rows(
    found: Sequence[Application], groups: Mapping[str, Bools], raw: RawColumns | None = None,
    **more: Any,
) -> Questions:  # fmt: skip
    told = [(a, i) for a in found for i in range(a.wanted.step_s.size)]
    return Questions(
        questions=[
            f"seconds of a step of {a.name} on {a.wanted.placements.workers[i]:g} GPUs of "
            f"{a.cluster}, batch {a.wanted.placements.batch[i]:g} each"
            for a, i in told
        ],
        truth=np.concatenate([a.wanted.step_s for a in found]),
        groups=groups,
        facts=found,
        raw=_application_columns(found) if raw is None else raw,
        **more,
    )


def _application_columns(found: Sequence[Application]) -> RawColumns:
    """Return the larger placements, and behind them those on few GPUs, which are known."""
    told = [(a, a.wanted.placements) for a in found] + [(a, a.known.placements) for a in found]
    names = [f"{a.cluster} {a.name}" for a, at in told for _ in at.batch]
    amounts = {
        name: np.concatenate([getattr(at, name) for _, at in told])
        for name in ("nodes", "per_node", "workers", "batch")
    }
    seconds = np.concatenate([a.known.step_s for a in found])
    return RawColumns.of(amounts, names, {"application": names}, seconds)


def _per_row(found: Sequence[Application], value: Callable[[Application], Any]) -> list[Any]:
    return [value(a) for a in found for _ in range(a.wanted.step_s.size)]


def by_application(of: Callable[[Application], Floats | None]) -> Rule:
    """Return a rule that answers application by application; nan where it lacks a fact."""

    def rule(rows: Questions, _answered: Bools) -> Floats:
        said = [(a, of(a)) for a in rows.facts]
        return np.concatenate(
            [np.full(a.wanted.step_s.size, np.nan) if s is None else s for a, s in said]
        )

    return rule


def nominal_links(asked: Application) -> Floats | None:
    """Perfect scaling plus a ring all-reduce at nominal bandwidth, nothing hidden."""
    alone, size, wanted = asked.alone_s, asked.gradient_bytes, asked.wanted.placements
    if alone is None or size is None or asked.cluster not in KNOWN_CLUSTERS:
        return None
    links, message = KNOWN_CLUSTERS[asked.cluster], (size, wanted.workers)
    inside = ring_all_reduce_s(*message, links.intra_bytes_per_s, links.intra_latency_s)
    between = ring_all_reduce_s(*message, links.network_bytes_per_s, links.network_latency_s)
    return np.asarray(alone + np.where(wanted.nodes > 1, between, inside))


def pollux(asked: Application) -> Floats:
    r"""Pollux's seven parameters, least squares on the logarithm of the known rows.

    With m samples a device and K devices; alpha and beta one pair inside a node, one between nodes
    (A. Qiao et al., "Pollux", OSDI 2021, section 3.2, equations (8) to (11)):

    .. math::
        T_{grad} &= \alpha_c + \beta_c m \\
        T_{sync} &= \alpha + \beta \max(K - 2, 0), \quad 0 \text{ for } K = 1 \\
        T &= (T_{grad}^\gamma + T_{sync}^\gamma)^{1/\gamma}, \quad 1 \le \gamma \le 10
    """
    from scipy.optimize import least_squares

    placements, target = asked.known.placements, np.log(asked.known.step_s)
    typical, batch = float(np.median(asked.known.step_s)), float(np.median(placements.batch))
    # log alpha_c, beta_c, then log alpha and beta on one node and between nodes; gamma - 1.
    start = np.log([typical / 2, typical / 2 / batch, *[typical / 4, typical / 50] * 2])
    found = least_squares(
        lambda theta: np.log(_pollux_step_s(theta, placements)) - target,
        np.append(start, 1.0),
        bounds=(np.append(start - 18.0, 0.0), np.append(start + 5.0, 9.0)),
        max_nfev=500,
    )
    return _pollux_step_s(found.x, asked.wanted.placements)


def _pollux_step_s(theta: Floats, placements: Placements) -> Floats:
    alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n = np.exp(theta[:6])
    gamma = 1.0 + theta[6]
    gradient = alpha_c + beta_c * placements.batch
    more = np.maximum(placements.workers - 2.0, 0.0)
    several = placements.nodes > 1
    sync = np.where(several, alpha_n + beta_n * more, alpha_r + beta_r * more)
    sync = np.where(placements.workers > 1, sync, 0.0)
    return np.asarray((gradient**gamma + sync**gamma) ** (1.0 / gamma))


def _means(rows: Questions, said: Mapping[str, Floats]) -> dict[str, float]:
    """Return means over applications of the MAPE by cluster, of every rule that answers all."""
    figures, names = {}, _per_row(rows.facts, lambda a: f"{a.cluster} {a.name}")
    of_application = by(names, is_sorted=False)
    for rule, value in said.items():
        for cluster in dict.fromkeys(a.cluster for a in rows.facts):
            errors = [
                Answers(value=value).scores(rows.truth, mask).mape_fraction
                for name, mask in of_application.items()
                if name.split()[0] == cluster and np.isfinite(value[mask]).all()
            ]
            if errors:
                figures[f"{cluster}: {rule}"] = round(float(np.mean(errors)), 4)
    return figures


# scaling


def read_scaling(data: Path) -> Questions:
    """Return described applications on more than four GPUs, their runs on at most four known.

    Raises ModelError if the tables are not there, or nothing in them can be asked.
    """
    found: list[Application] = []
    left_out: list[str] = []
    for cluster, runs in read_clusters(data).items():
        for index, name in enumerate(runs.applications if cluster in MACHINES else ()):
            known, wanted = _halves(runs, index)
            if not (known.step_s.size and wanted.step_s.size):
                left_out.append(f"{cluster} {name}")
                continue
            found.append(
                Application(
                    cluster=cluster, name=name, known=known, wanted=wanted,
                    gradient_bytes=runs.gradient_bytes[index],
                )
            )  # fmt: skip
    if not found:
        raise ModelError("no application has rows both on at most and on more than four GPUs")
    names = _per_row(found, lambda a: f"{a.cluster} {a.name}")
    is_described = np.array(_per_row(found, lambda a: work_of(a.name) is not None))
    return _application_rows(
        found,
        {"known by runs alone": ~is_described} | by(names, is_sorted=False),
        counted=is_described,
        unseen=[f"{name} on more than {FEW} GPUs" for name in names],
        notes=(
            f"not asked, since nobody can place them: {', '.join(left_out) or 'none'}; and "
            "placements of unlike shares of machines",
            "applications that nobody can describe are known by their runs alone (--runs), and "
            "stand in groups of their own",
            "an application's work is that of the public model of its name, in fp32",
        ),
    )


def work_of(application: str) -> Work | None:
    """Return what one sample of an application computes; None of what cannot be described."""
    if application == "bert":
        # As a recording of the script would be known: by its operators.
        return replace(transformer_work(_BERT, micro_batch=1, precision="fp32"), transformer=None)
    if application in _NETWORKS:
        network = parse_network(_NETWORKS[application])
        return convolutional_work(network, micro_batch=1, precision="fp32")
    return None


def _halves(runs: ClusterRuns, index: int) -> tuple[MeasuredPlacements, MeasuredPlacements]:
    """Return an application's rows on few GPUs and on more, on like shares of machines."""
    places = runs.measured.placements
    own = (places.application == index) & (places.workers == places.nodes * places.per_node)
    few = places.workers <= FEW
    return runs.take(own & few), runs.take(own & ~few)


def _actuals(cluster: str, known: MeasuredPlacements) -> tuple[Actual, ...]:
    at = known.placements
    told = zip(at.nodes, at.per_node, at.workers, at.batch, known.step_s, strict=True)
    return tuple(
        Actual(
            run=cluster, provider="", count=1, step_s=float(step_s), batch=round(workers * batch),
            instance_type=_machines(cluster, int(nodes), int(per_node)),
        )
        for nodes, per_node, workers, batch, step_s in told
    )  # fmt: skip


def _machines(cluster: str, nodes: int, per_node: int) -> str:
    return f"{nodes}x{per_node}x{MACHINES[cluster]}"


def _scaling_answers(rows: Questions) -> Answers:
    said = [answered(one.cluster, _job(one), one.wanted.placements) for one in rows.facts]
    step_s, log_sd = np.concatenate(said).T
    return Answers.spread(step_s, log_sd)


def _job(one: Application) -> Job:
    """Return an application as it is known: by its public model, or by its runs alone."""
    work, runs = work_of(one.name), _actuals(one.cluster, one.known)
    name = f"{one.cluster} {one.name}"
    if work is not None:
        return replace(described_job(work, name=name), actuals=runs)
    asking = predictor()
    return job_from_runs(
        runs, asking.catalogue, asking.constants.device, name=name, precision="fp32"
    )


def answered(cluster: str, job: Job, wanted: Placements) -> Floats:
    """Return the product's step [s] and log_sd of every placement; nan where it has none."""
    found = np.full((wanted.batch.size, 2), np.nan)
    asking = predictor()
    for nodes, per_node in sorted({*zip(wanted.nodes, wanted.per_node, strict=True)}):
        group = one_group(_machines(cluster, int(nodes), int(per_node)), asking.catalogue)
        fleet, row = own_fleet(group, asking.fleet, per_node=int(per_node))
        here = (wanted.nodes == nodes) & (wanted.per_node == per_node)
        for batch in np.unique(wanted.batch[here]):
            columns = asking.step_columns(
                replace(job, global_batch=round(nodes * per_node * batch)),
                np.array([row]), np.array([int(nodes)]), fleet=fleet,
            )  # fmt: skip
            if columns.status[0] == 0:
                found[here & (wanted.batch == batch)] = columns.step_s[0], columns.log_sd[0]
    return found


_RULES: Final = {
    "perfect scaling": by_application(lambda a: a.alone_s),
    "alpha-beta at nominal bandwidth": by_application(nominal_links),
}
_WITH_POLLUX: Final = _RULES | {"Pollux, seven parameters": by_application(pollux)}


def _scaling_figures(rows: Questions, answers: Answers) -> dict[str, float]:
    said = {name: rule(rows, rows.every) for name, rule in _WITH_POLLUX.items()}
    figures = _means(rows, {"ours": answers.value} | said)  # type: ignore[arg-type]
    workers = np.concatenate([a.wanted.placements.workers for a in rows.facts])
    for name, mask in (
        (f"beyond {FAR} times the largest known size", workers > FAR * FEW + 0.5),
        ("up to that", workers < FAR * FEW + 0.5),
    ):
        if (mask & np.isfinite(answers.value)).any():
            found = answers.scores(rows.truth, mask)
            figures |= found.named(f"{name}: ", "rows", "MAPE")
            figures[f"{name}: 90 % interval covers"] = found.coverage or 0.0
    return figures | _regrets_of_number(rows, answers.value)


# What half the time is worth in the picks of ``recommend`` (docs/answer.md).
_PICKS: Final = {"cheapest": 0, "best value": 1, "fastest": 2}


def _regrets_of_number(rows: Questions, value: Floats) -> dict[str, float]:
    """Return what choosing the number of GPUs by the answers costs over the best, less 1.

    Among the placements of each application, cluster and batch of a GPU that are asked, by
    ``t^w c``: ``c`` are the GPU-seconds of a sample, so that no price is needed. Placements that
    were measured again count as their mean.
    """
    lost: dict[str, list[float]] = {}
    starts = np.cumsum([0, *(a.wanted.step_s.size for a in rows.facts)])
    for one, start in zip(rows.facts, starts, strict=False):
        at = one.wanted.placements
        said = value[start : start + at.batch.size]
        places = np.c_[at.nodes, at.per_node, at.workers]
        for batch in np.unique(at.batch[np.isfinite(said)]):
            asked = np.flatnonzero((at.batch == batch) & np.isfinite(said))
            found, place = np.unique(places[asked], axis=0, return_inverse=True)
            if len(found) == 1:
                continue
            real, ours = (
                np.exp(np.bincount(place, np.log(s[asked])) / np.bincount(place))
                for s in (one.wanted.step_s, said)
            )
            workers = found[:, 2]
            for pick, w in _PICKS.items():
                worth, by_ours = ((s / workers) ** (1 + w) * workers for s in (real, ours))
                for who, chosen in (("", by_ours), (", the most GPUs", -workers)):
                    regret = float(worth[np.argmin(chosen)] / worth.min()) - 1
                    name = f"regret of the number of GPUs, {pick}{who}"
                    lost.setdefault(name, []).append(regret)
    return {name: float(np.mean(of)) for name, of in lost.items()}


# Of both protocols below: ours; other rules' are beside.
_SENSES: Final[Mapping[str, Sense]] = {
    "*: ours": "lower", "*: in sample*": "lower", "*interval covers*": 0.9,
    "*, the most GPUs": "neutral", "*: perfect scaling": "neutral", "*: alpha-beta*": "neutral",
    "*: Pollux*": "neutral",
}  # fmt: skip
SCALING: Final = Protocol(
    name="scaling",
    description="step time on more than 4 GPUs from the job's runs on at most 4",
    senses=_SENSES,
    rows=read_scaling,
    answer=_scaling_answers,
    seen=(
        "the law's form, the noise of a row and the priors' widths: after seeing residuals of "
        "these rows",
        "the prior means of what grows with scale",
    ),
    fitted_on=("the links' constants, where these clusters were fetched before the fit",),
    baselines=_WITH_POLLUX,
    figures=_scaling_figures,
    notes=("figures: mean over applications of the MAPE of step time, as a fraction",),
)


# scaling-nominal

IN_SAMPLE: Final = "in sample (constants as shipped, fitted on these rows)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nominal(Application):
    """Also the planner's constants, fitted without the cluster."""

    constants: ScalingParameters


def read_nominal(data: Path) -> Questions:
    """Return applications with a step on one GPU and known gradients, on more than four.

    Raises ModelError if the tables are not there, or nothing in them can be asked.
    """
    clusters = {n: r for n, r in read_clusters(data).items() if n in KNOWN_CLUSTERS}
    if len(clusters) < 2 and not SIA.is_in(data):
        raise SIA.absent(data)  # one cluster ships, and alone it cannot be left out
    constants = fit_without_each(data)
    found = []
    for cluster, runs in clusters.items():
        for index, name in enumerate(runs.applications if cluster in constants else ()):
            own = runs.measured.placements.application == index
            few = runs.measured.placements.workers <= FEW
            one = Nominal(
                cluster=cluster, name=name, known=runs.take(own & few),
                wanted=runs.take(own & ~few), gradient_bytes=runs.gradient_bytes[index],
                constants=constants[cluster],
            )  # fmt: skip
            if one.gradient_bytes is not None and one.wanted.step_s.size:
                found += [one] if one.alone_s is not None else []
    if not found:
        raise ModelError(
            "no cluster can be left out: at least two with known links and steps on one GPU",
            hint="see shared/reference/protocols.md, scaling",
        )
    names = _per_row(found, lambda a: a.cluster)
    return _application_rows(
        found, by(names, is_sorted=False), _nominal_columns(found, names),
        unseen=[f"steps on {name}" for name in names],
    )  # fmt: skip


def _nominal_columns(found: Sequence[Nominal], clusters: Sequence[str]) -> RawColumns:
    """Return placements, the step on one GPU and the gradients; the cluster is left out."""
    amounts: dict[str, Any] = {
        name: np.concatenate([getattr(a.wanted.placements, name) for a in found])
        for name in ("nodes", "per_node", "workers", "batch")
    }
    amounts["alone"] = np.concatenate([a.alone_s for a in found if a.alone_s is not None])
    amounts["gradients"] = _per_row(found, lambda a: a.gradient_bytes)
    return RawColumns.of(amounts, clusters)


def _planned(rows: Questions, constants: ScalingParameters | None = None) -> Floats:
    """Return the planner's steps [s] and their log_sd, shape (2, n)."""
    said = []
    for a in rows.facts:
        columns = uncalibrated(
            a.cluster, a.gradient_bytes, a.alone_s, a.wanted.placements, constants or a.constants
        )
        said.append(np.broadcast_arrays(columns.step_s, columns.log_sd))
    return np.concatenate(said, axis=1)


def _nominal_figures(rows: Questions, answers: Answers) -> dict[str, float]:
    in_sample = _planned(rows, case.scaling())[0]
    said: dict[str, Any] = {name: rule(rows, rows.every) for name, rule in _RULES.items()}
    figures = {f"pooled: {IN_SAMPLE}, MAPE": score(in_sample, rows.truth).mape_fraction}
    figures |= _means(rows, {"ours": answers.value, **said, IN_SAMPLE: in_sample})
    bound = np.array(_per_row(rows.facts, lambda a: a.name in INPUT_BOUND))
    for name, mask in (("loading aside", ~bound), ("bound by loading", bound)):
        if mask.any():
            covered = answers.scores(rows.truth, mask).coverage
            figures[f"90 % interval covers, {name}"] = covered or 0.0
    return figures | _regrets_of_number(rows, answers.value)


NOMINAL: Final = Protocol(
    name="scaling-nominal",
    description="step time on more than 4 GPUs from one GPU's and nominal links, cluster out",
    senses=_SENSES,
    rows=read_nominal,
    answer=lambda rows: Answers.spread(*_planned(rows)),
    scores="the product's planner of data parallelism, told the step measured on one GPU",
    puts_in="the size of the gradients, which no flag says",
    seen=(
        "the planner's form: overlap, one stream's limit and stragglers were chosen while looking "
        "at these clusters",
        "an application's steps on one GPU of the scored cluster: measured, and told",
    ),
    baselines=_RULES,
    by_group=True,
    figures=_nominal_figures,
    notes=(
        "known of a cluster: its links as sold, and each application's steps on one GPU",
        "YOLOv3's steps are bound by loading, of which the planner is told nothing",
        "figures by cluster: mean over applications of the MAPE of step time, every rule on "
        "the same applications",
    ),
)


# series-mlperf

_COLUMNS: Final = ("accelerators", "global_batch", "samples_per_s")
SERIES_KEYS: Final = ["round", "organisation", "benchmark", "accelerator"]
BANDS: Final = ((1, 2), (2, 4), (4, 8), (8, 32), (32, np.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One submission: a whole system, and the samples of a step."""

    device: Device
    accelerators: int
    batch: int
    samples_per_s: float

    @property
    def step_s(self) -> float:
        return self.batch / self.samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The smallest system of a series, and one of its larger ones."""

    benchmark: str
    small: System
    large: System

    @property
    def growth(self) -> float:
        return self.large.accelerators / self.small.accelerators


def read_pairs(table: pd.DataFrame) -> Iterator[Pair]:
    """Yield the smallest system of each series with every larger one."""
    table = table[table.division.isna() | (table.division == "closed")]
    table = table[(table[list(_COLUMNS)] > 0).all(axis=1)]
    series = table.sort_values("accelerators").groupby(SERIES_KEYS)
    for (_, _, benchmark, accelerator), entries in series:
        device = suite_device(str(accelerator))
        if device is None:
            continue
        systems = [
            System(device=device, accelerators=int(n), batch=int(batch), samples_per_s=float(rate))
            for n, batch, rate in entries[list(_COLUMNS)].to_numpy(float)
        ]
        systems = [s for s in systems if s.batch >= s.accelerators > 1]
        for large in systems[1:]:
            if large.accelerators > systems[0].accelerators:
                yield Pair(benchmark=str(benchmark), small=systems[0], large=large)


def ask(pair: Pair) -> tuple[float, float]:
    """Return the product's samples/s of the larger system, and the deviation of its logarithm."""
    asking, small, large = predictor(), pair.small, pair.large
    noted = Actual(
        run="j", provider="", instance_type=small.device.name, count=small.accelerators,
        step_s=small.step_s, batch=small.batch,
    )  # fmt: skip
    job = job_from_runs(
        (noted,), asking.catalogue, asking.constants.device, name="j", precision="bf16",
        batch=large.batch,
    )  # fmt: skip
    step_s, log_sd = step_on(asking, job, unmeasured(large.device), large.accelerators)
    return large.batch / step_s, log_sd


def read_mlperf_series(data: Path) -> Questions:
    """Return the larger systems of the entries.

    Raises ModelError if the table is missing, lacks a column or holds no series.
    """
    pairs = list(read_pairs(MLPERF.read("entries", data)))
    if not pairs:
        raise ModelError(f"{MLPERF.title} under {data} hold no series of two sizes")
    growth = np.array([p.growth for p in pairs])
    names = np.array([p.benchmark for p in pairs])
    bands = {
        f"size x {least:g} to {most:g}": (growth > least) & (growth <= most)
        for least, most in BANDS
    }
    return Questions(
        questions=[
            f"samples/s of {p.benchmark} on {p.large.accelerators} x {p.large.device.name}, "
            f"batch {p.large.batch}; --runs {p.small.device.name},{p.small.accelerators},"
            f"{p.small.step_s:.4g}s,{p.small.batch}"
            for p in pairs
        ],
        truth=np.array([p.large.samples_per_s for p in pairs]),
        unseen=["every other entry of the series"] * len(pairs),
        groups=by(names) | bands,
        raw=RawColumns.of(
            {"small": [p.small.samples_per_s for p in pairs], "growth": growth,
             "accelerators": [p.large.accelerators for p in pairs],
             "batch": [p.large.batch for p in pairs],
             "batch growth": [p.large.batch / p.small.batch for p in pairs]},
            names,
        ),
        facts={
            "pairs": pairs, "growth": growth, "name": names,
            "small": np.array([p.small.samples_per_s for p in pairs]),
            "share": np.array([p.large.batch / p.small.batch for p in pairs]) / growth,
        },
    )  # fmt: skip


SERIES_MLPERF: Final = Protocol(
    name="series-mlperf",
    description="samples/s of a larger system, known one run of the job on the smallest",
    rows=read_mlperf_series,
    answer=lambda rows: Answers.spread(*np.array([ask(p) for p in rows.facts["pairs"]]).T),
    seen=(
        "how much wider an interval is a doubling of the accelerators",
        "the usual shares of a step that is known by runs: chosen on Lambda's suite",
    ),
    baselines={
        "linear": baselines.linear_growth,
        "one power of the size, other benchmarks'": baselines.power_of_growth,
        "two powers, of the size and of a device's samples": baselines.powers_of_growth_and_share,
        "the small system's": baselines.same_as("small"),
    },
    notes=(
        "closed division; asked as `--runs`: nothing is known of the job but one run",
        "not asked: fewer samples than accelerators, one accelerator as the smallest system, "
        "and accelerators without specifications",
    ),
)


# cluster, series: peers between sites

_NOMINAL_BYTES_PER_S: Final = 1.25e9  # 10 Gbit/s: what the baseline believes of every link
_PEERS_SEEN: Final = "that intervals differ by whether a link between sites is crossed"


def _asked_peers(peers: PeerRows[Any], fit: Callable[[PeerRows[Any]], FittedRate]) -> Floats:
    """Return low, value and high of the samples/s of every row, by fits without its model."""
    found = np.empty((3, len(peers.samples_per_s)))
    for model in np.unique(peers.models).tolist():
        out = np.flatnonzero(peers.models == model)
        fitted = fit(peers.take(np.flatnonzero(peers.models != model)))
        asking = PeerModel(parts=fitted, minute=fitted)
        found[:, out] = np.asarray(asking.rates(peers.take(out).asked)).T
    return found


def _peer_rows(peers: PeerRows[Any], what: str, truth: Floats, facts: dict[str, Any]) -> Questions:
    return Questions(
        questions=[f"{what} of {key}" for key in peers.keys],
        truth=truth,
        unseen=[f"recordings of {model}" for model in peers.models],
        groups=by(peers.models),
        facts={"peers": peers, **facts},
        raw=_peer_columns(peers.peers, facts, peers.models),
    )


def _peer_columns(peers: Any, facts: Mapping[str, Any], models: Any) -> RawColumns:
    amounts = {
        one.name: np.nan_to_num(getattr(peers, one.name), posinf=_NOMINAL_BYTES_PER_S)
        for one in fields(peers)
    }
    return RawColumns.of({**amounts, **facts}, models)


def read_cluster(data: Path) -> Questions:
    """Return multi-node runs; known are single-node runs, and the slowest link between sites."""
    peers, _ = read_rows(data)
    asked = peers.asked
    # Two bytes a parameter go through the slowest link, 10 Gbit/s where there is one site.
    stall_s = asked.ring_gb * 2e9 / np.minimum(asked.link_bytes_per_s, _NOMINAL_BYTES_PER_S)
    alone_s = asked.target_samples / asked.samples_per_s
    facts = {
        "alone": asked.samples_per_s,
        "alpha-beta": np.asarray(asked.target_samples / (alone_s + stall_s), float),
    }
    is_far = np.isfinite(asked.link_bytes_per_s)
    rows = _peer_rows(peers, "samples/s", peers.samples_per_s, facts)
    return replace(rows, groups={**rows.groups, "one site": ~is_far, "several sites": is_far})


def _cluster_answers(rows: Questions) -> Answers:
    peers = rows.facts["peers"]
    low, value, high = _asked_peers(peers, lambda known: fitted_rate(known, rate_of_parts))
    # The mean error of a repeat against its cell's mean cannot be beaten.
    cells = [rows.truth[mask] for mask in by(peers.keys).values()]
    errors = [np.abs(v / np.mean(v) - 1) for v in cells if v.size > 1]
    scatter = float(np.mean(np.concatenate(errors))) if errors else 0.0
    return Answers(value=value, low=low, high=high, figures={"repeat_scatter_fraction": scatter})


CLUSTER: Final = Protocol(
    name="cluster",
    description="Samples/s of several nodes from single-node runs, each model left out.",
    senses={"repeat_scatter_fraction": "neutral"},
    rows=read_cluster,
    answer=_cluster_answers,
    scores="what `advisor simulate peers` answers (predict.peers)",
    seen=("the form of the equation, the floor on the epoch among it", _PEERS_SEEN),
    baselines={
        "linear scaling": baselines.same_as("alone"),
        "alpha-beta, links as measured": baselines.same_as("alpha-beta"),
    },
    notes=(
        "links between sites are medians of the recordings' own iperf logs "
        "(records.importers.hivemind_sites)",
    ),
)


def read_series(data: Path) -> Questions:
    """Return every run; known is its first minute of network readings and step records."""
    _, peers = read_rows(data)
    facts = {"minute": 1e6 / peers.asked.window_per_s}
    return _peer_rows(peers, "seconds per million samples", 1e6 / peers.samples_per_s, facts)


def _series_answers(rows: Questions) -> Answers:
    low, rate, high = 1e6 / _asked_peers(
        rows.facts["peers"], lambda known: fitted_rate(known, rate_after_a_minute)
    )
    return Answers(value=rate, low=high, high=low)


SERIES: Final = Protocol(
    name="series",
    description="Seconds per million samples from the first minute, each model left out.",
    rows=read_series,
    answer=_series_answers,
    scores="what `advisor simulate peers --running` answers (predict.peers)",
    seen=(
        "the form of the equation, what a peer that waits sends, and what ends a run",
        _PEERS_SEEN,
    ),
    baselines={"extrapolate the minute": baselines.same_as("minute")},
    notes=("the label of most models was inferred from step times (SOURCE.md)",),
)
