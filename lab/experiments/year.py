"""A team's year, replayed: what its own runs are worth as they come in.

Public measurements stand for a journal, in twenty seeded orders (or in the order of time where it
is stated: ``--data`` names the published tables that say it). Every run is written as a row of a
table and read as ``advisor runs import csv`` reads one. After every tenth run what the product
learns (``learned.regions``, kept by region as ``advisor train`` keeps it) is fitted again, and the
next ten are asked. Beside it stand the answers that ship, a kNN on the journal alone, and each
candidate alone, fitted to what the answers leave over.

    python -m advisor.lab.experiments.year --orders 20
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.jobs.describe import described_job
from advisor.lab import score
from advisor.lab.data import SCOUT, TRAINPRED
from advisor.lab.fit.described import profet_rows
from advisor.lab.fit.peers import left_out, read_rows
from advisor.lab.score.asked import predictor, step_on
from advisor.lab.score.devices import job_cells, table_of_cells
from advisor.lab.score.runs import choices, own_folder
from advisor.learned import (
    PROCESSORS,
    SEQUENCE_READINGS,
    Lessons,
    Places,
    Residuals,
    RunColumns,
    Stack,
    TrainedModel,
    estimator,
    judged,
    places_of_runs,
)
from advisor.learned.features import sequences
from advisor.learned.pooled import CandidateName
from advisor.learned.regrets import cell
from advisor.planners.step import job_features, unmeasured
from advisor.planners.systems.internet_peers import rate_of_parts
from advisor.quantities import REACH_90
from advisor.records import AnchorRun, RunRecord, read_runs_as
from advisor.train.labelled import read_runs

Floats = NDArray[np.float64]
Said = tuple[Floats, Floats | None]  # expected errors; what deviations are multiplied by
Answer = Callable[["Journal", NDArray[np.intp], NDArray[np.intp]], Said]
_EVERY: Final = 10
_MOST_RUNS: Final = 120
_NEIGHBOURS: Final = 3
_USUAL_LOG_SD: Final = 0.2  # of answers without an interval of their own


@dataclass(frozen=True, kw_only=True)
class Journal:
    """One source's runs, rows aligned."""

    name: str
    places: Places
    took_s: Floats
    answered_s: Floats  # by what ships
    log_sd: Floats  # of ln of that, as its interval says
    order: NDArray[np.intp] | None = None  # in time, where it is stated
    series: Floats | None = None  # (n, channels * readings); of the recordings, where there are

    @property
    def residual(self) -> Floats:
        """What the answers leave over."""
        return np.asarray(np.log(self.took_s / self.answered_s))

    @property
    def job(self) -> NDArray[np.str_]:
        """The groups of a paired difference."""
        return self.places.job

    @property
    def columns(self) -> Floats:
        """Columns for estimators: what is known of the job, its machine and its family."""
        return self.places.columns(self.places)

    def known(self, rows: NDArray[np.intp]) -> Residuals:
        """Return some of the runs beside the answers."""
        return Residuals(
            places=self.places.take(rows), residual=self.residual[rows], log_sd=self.log_sd[rows]
        )


SOURCES: Final[dict[str, Callable[[Path | None], Journal]]] = {
    "profet": lambda _: _through_the_door(_profet()),
    "trainpred": lambda published: _through_the_door(_trainpred(published)),
    "mlperf": lambda _: _through_the_door(_mlperf()),
    "hivemind": lambda _: _through_the_door(_hivemind()),
    "minutes": lambda _: _minutes(),
    "scout": lambda published: _through_the_door(_scout(published)),
}


def _profet() -> Journal:
    """Return PROFET's described networks, each asked as ``plan --cnn`` is."""
    steps = list(profet_rows(data.measurements(), is_whole=True))
    answers = np.array([
        step_on(predictor(), described_job(s.work, name=s.model), unmeasured(s.device))
        for s in steps
    ])  # fmt: skip
    batch = np.log([s.work.micro_batch for s in steps])
    return Journal(
        name="profet",
        places=Places(
            job=np.array([s.model for s in steps]),
            machine=np.array([s.device.name for s in steps]),
            architecture=np.array([s.device.architecture for s in steps]),
            is_several=np.zeros(len(steps), bool),
            kind=np.full(len(steps), "convolutions"),
            flop=np.array([float(s.work.operators.flop.sum()) for s in steps]),
            features=np.array([job_features(s.work) for s in steps]),
            amounts=np.c_[batch, np.zeros((len(steps), 3))],
        ),
        took_s=np.array([s.seconds for s in steps]),
        answered_s=answers[:, 0],
        log_sd=answers[:, 1],
    )


def _mlperf() -> Journal:
    """Return MLPerf's cells, each answered from the same job's runs on other devices."""
    asked = score.load("gpu-mlperf")
    rows = asked.rows(data.measurements())
    frame = rows.facts.frame
    batch = np.log(frame["batch"].to_numpy(float))
    return _cells("mlperf", asked, rows, frame["model"].to_numpy(str), batch[:, None])


def _trainpred(published: Path | None) -> Journal:
    """Return trainpred's steps, each answered from the same job's runs on the other GPUs."""
    table = job_cells(data.measurements())
    asked, rows = table_of_cells("trainpred", table[table["collection"] == "trainpred"], None)
    frame = rows.facts.frame
    words = [one.split() for one in frame["model"]]  # collection, network, pixels-images
    pixels = np.array([float(one[2].split("-")[0]) for one in words])
    amounts = np.log(np.c_[frame["batch"].to_numpy(float), pixels])
    return _cells(
        "trainpred", asked, rows, np.array([one[1] for one in words]), amounts,
        _moments_of_trainpred(published),
    )  # fmt: skip


def _cells(
    name: str, asked: Any, rows: Any, job: NDArray[np.str_], amounts: Floats,
    moments: dict[tuple[str, str, float], str] | None = None,
) -> Journal:  # fmt: skip
    frame, answers = rows.facts.frame, asked.answer(rows)
    batch, machine = frame["batch"].to_numpy(float), frame["gpu"].to_numpy(str)
    seen = np.isfinite(answers.value) & np.isfinite(rows.truth)
    order = None
    if moments:
        keys = zip(machine[seen], frame["model"][seen], batch[seen], strict=True)
        order = np.argsort([moments[key] for key in keys], kind="stable")
    return Journal(
        name=name,
        places=_bare(job[seen], machine[seen], amounts[seen]),
        took_s=(batch / rows.truth)[seen],
        answered_s=(batch / answers.value)[seen],
        log_sd=(np.log(answers.high / answers.low) / (2 * REACH_90))[seen],
        order=order,
    )


def _moments_of_trainpred(published: Path | None) -> dict[tuple[str, str, float], str]:
    """Return when each cell was measured: the moment is in the published table alone."""
    if published is None:
        return {}
    file = published / "cloud_runs" / "cloud-hw-trainpred" / "nvidiasmi_devicequery_all.csv"
    with file.open(encoding="utf-8") as lines:
        said = {
            f"trainpred/{r['model']}-{r['batchsize']}-{r['datasize']}-{r['totaldata']}/"
            f"{r['Instances']}": r["new_timestamp_gpu"]
            for r in csv.DictReader(lines)
        }
    found = {}
    for one in TRAINPRED.read_runs("epochs", data.measurements()):
        batch, pixels, images = (
            float(one.job.facts[n]) for n in ("batch", "image_pixels", "epoch_samples")
        )
        model = f"trainpred {one.job.family} {pixels:g}-{images:g}"
        found[one.configuration[0].accelerator, model, batch] = said[one.record_id]
    return found


def _bare(
    job: NDArray[np.str_], machine: NDArray[np.str_], amounts: Floats, *, is_several: bool = False
) -> Places:
    """Return places of which jobs and machines are known by their names and amounts alone."""
    rows = len(machine)
    return Places(
        job=job, machine=machine, architecture=machine, is_several=np.full(rows, is_several),
        kind=np.full(rows, "any"), flop=np.full(rows, math.inf), features=np.zeros((rows, 6)),
        amounts=amounts,
    )  # fmt: skip


def _hivemind() -> Journal:
    """Return runs of several peers, each answered by constants fitted without its model.

    What each kind of peer does alone is known (``advisor simulate peers``).
    """
    rows, _ = read_rows(data.measurements())
    peers = rows.peers
    known = np.c_[peers.target_samples, peers.samples_per_s, peers.parameters_gb, peers.peers,
                  np.minimum(peers.link_bytes_per_s, 1e10)]  # fmt: skip
    rates, _ = left_out(rows, rate_of_parts)
    kinds = np.array([key.partition("[(")[2].split("'")[1] for key in rows.keys])
    return Journal(
        name="hivemind",
        places=_bare(rows.models, kinds, np.log(known), is_several=True),
        took_s=1e6 / rows.samples_per_s,
        answered_s=1e6 / rates,
        log_sd=np.full(len(kinds), _USUAL_LOG_SD),
    )


def _scout(published: Path | None) -> Journal:
    """Return Spark and Hadoop jobs on clusters, answered from one run by the law of the cores.

    The run that is known is on the configuration that is best on average over the other families
    (``validate ranking``); failed runs are left out.
    """
    records = [one for one in SCOUT.read_runs("jobs", data.measurements()) if one.status == "ok"]
    found: list[RunRecord] = []
    for choice in choices("scout", records):
        cells = choice.matrices[3]
        own = [one for one in records if one.job.job_id == choice.name]
        first = next(one for one in own if cell(one) == cells[choice.first])
        anchor = AnchorRun(
            machines=first.configuration[0], time_s=float(first.time_s or math.nan), facts={}
        )
        found += [
            replace(one, anchor=anchor, layout={"workers": one.instances / first.instances})
            for one in own
            if one is not first
        ]
    machines = [one.configuration[0] for one in found]
    known = [[m.vcpus, m.memory_gib, m.count] for m in machines]
    job = np.array([one.job.job_id for one in found])
    return Journal(
        name="scout",
        places=_bare(job, np.full(len(found), PROCESSORS), np.log(np.array(known, float)),
                     is_several=True),
        took_s=np.array([one.time_s for one in found], float),
        answered_s=RunColumns.of(found).physics_s,
        log_sd=np.full(len(found), _USUAL_LOG_SD),
        order=_in_order_of_scout(found, published),
    )  # fmt: skip


def _in_order_of_scout(
    found: Sequence[RunRecord], published: Path | None
) -> NDArray[np.intp] | None:
    if published is None:
        return None
    with (published / "cloud_runs" / "scout-multinode" / "runs.csv").open() as lines:
        said = {
            f"scout/{r['workload_dir']}/{r['instance_type']}/{r['n_nodes']}": r["timestamp"]
            for r in csv.DictReader(lines)
        }
    return np.argsort([said[one.record_id] for one in found], kind="stable")


def _minutes() -> Journal:
    """Return our own jobs of a minute, answered by the shipped model."""
    records = [
        one
        for one in read_runs([own_folder(data.measurements(), "minutes")])
        if one.status == "ok" and one.facts.get("is_noisy") != 1.0
    ]
    runs = RunColumns.of(records)
    answered = TrainedModel.load(data.root("trained_models") / "runs").predict(runs, 0.9)
    job = np.array([one.job.family for one in records])
    return Journal(
        name="minutes",
        places=places_of_runs(runs, job),
        took_s=np.array([one.time_s for one in records], float),
        answered_s=np.asarray(answered.value),
        log_sd=np.log(answered.high / answered.low) / (2 * REACH_90),
        series=sequences(records),
    )


def _through_the_door(journal: Journal) -> Journal:
    """Return the journal with names and times as ``runs import csv`` reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["run", "program", "accelerator", "time_s"])
            rows = zip(journal.job, journal.places.machine, journal.took_s, strict=True)
            writer.writerows([str(i), *row] for i, row in enumerate(rows))
        read = read_runs_as("csv", path)
    job = np.array([one.job.family for one in read])
    took_s = np.array([one.time_s for one in read], float)
    return replace(journal, places=replace(journal.places, job=job), took_s=took_s)


def _ours(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Said:
    """Answer as the product does after ``advisor train``."""
    runs = journal.known(known)
    error, spread, _ = Lessons.of(runs, judged(runs)).expected(journal.places.take(asked))
    return error, spread


def _alone(name: CandidateName) -> Answer:
    def answer(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Said:
        runs = journal.known(known)
        trees = runs.boosted() if name == "boosting" else None
        error, left = runs.expected(journal.places.take(asked), name, trees)
        return error, np.sqrt(left)

    return answer


def _neighbours(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Said:
    """Answer by the nearest runs of the journal, nothing of physics heard."""
    bare = journal.columns
    scaled = (bare - bare[known].mean(axis=0)) / np.maximum(bare[known].std(axis=0), 0.1)
    far = np.square(scaled[asked][:, None] - scaled[known][None]).sum(axis=-1)
    near = np.argsort(far, axis=1)[:, :_NEIGHBOURS]
    logs = np.log(journal.took_s[known])[near].mean(axis=1)
    return logs - np.log(journal.answered_s[asked]), None


def _estimated(build: Callable[[], Any]) -> Answer:
    def answer(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Said:
        model = build().fit(journal.columns[known], journal.residual[known],
                            groups=journal.job[known])  # fmt: skip
        return np.asarray(model.predict(journal.columns[asked]), float), None

    return answer


def _network(*, has_series: bool) -> Answer:
    """Answer by the network, over the recorded series too or by the columns alone."""

    def answer(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Said:
        series = journal.series if has_series else None
        if has_series and series is None:
            return np.full(len(asked), np.nan), None
        columns = journal.columns if series is None else np.hstack([journal.columns, series])
        channels = 0 if series is None else series.shape[1] // SEQUENCE_READINGS
        network = estimator(
            "sequence", channels=channels, readings=SEQUENCE_READINGS if channels else 0,
            epochs=100, calibration_folds=0,
        )  # fmt: skip
        network.fit(columns[known], journal.residual[known], groups=journal.job[known])
        return np.asarray(network.predict(columns[asked]), float), None

    return answer


def _stack() -> Any:
    members = [("ridge", estimator("ridge")), ("forest", estimator("forest", trees=30))]
    return Stack(members, folds=3, calibration_folds=0)


CANDIDATES: Final[dict[str, Answer]] = {
    "ships": lambda journal, known, asked: (np.zeros(len(asked)), np.ones(len(asked))),
    "ours": _ours,
    "kNN": _neighbours,
    "pooled": _alone("pooled"),
    "linear": _alone("linear"),
    "boosting": _alone("boosting"),
    "forest": _estimated(lambda: estimator("forest", trees=50, calibration_folds=0)),
    "stack": _estimated(_stack),
    "network": _network(has_series=False),
    "series": _network(has_series=True),
}
_USUAL: Final = ("ships", "ours", "kNN", "pooled", "linear", "boosting")


@dataclass(kw_only=True)
class Point:
    """What was said of the next ten after so many runs, all orders together."""

    job: list[str]
    errors: dict[str, list[Floats]]  # abs(ln)
    inside: dict[str, list[NDArray[np.bool_]]]  # of 90 % intervals
    widths: dict[str, list[Floats]]  # half of them, ln


def curve(journal: Journal, orders: int, names: Sequence[str]) -> dict[int, Point]:
    """Return what each candidate says of the next ten runs, by how many are known."""
    found: dict[int, Point] = {}
    for seed in range(1 if journal.order is not None else orders):
        order = journal.order
        if order is None:
            order = np.random.default_rng(seed).permutation(len(journal.job))
        for count in range(_EVERY, min(len(order), _MOST_RUNS + 1), _EVERY):
            known, asked = order[:count], order[count : count + _EVERY]
            if not asked.size or len(set(journal.job[known])) < 2:
                continue
            here = found.setdefault(count, Point(
                job=[], errors={n: [] for n in names}, inside={}, widths={},
            ))  # fmt: skip
            here.job += journal.job[asked].tolist()
            for name in names:
                said, spread = CANDIDATES[name](journal, known, asked)
                off = np.abs(said - journal.residual[asked])
                here.errors[name].append(off)
                if spread is not None:
                    half = REACH_90 * spread * journal.log_sd[asked]
                    here.inside.setdefault(name, []).append(off <= half)
                    here.widths.setdefault(name, []).append(half)
    return found


def paired(point: Point) -> tuple[float, float]:
    """Return mean and standard error of ours less what ships, a group a job."""
    gap = np.concatenate(point.errors["ours"]) - np.concatenate(point.errors["ships"])
    job = np.array(point.job)
    means = np.array([gap[job == one].mean() for one in np.unique(job)])
    spread = means.std(ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return float(means.mean()), float(spread)


def lines(journal: Journal, found: dict[int, Point], orders: int) -> Iterator[str]:
    """Yield a table: errors of the next ten [%], ours against what ships, and the intervals."""
    names = list(next(iter(found.values())).errors)
    order = "in the order of time" if journal.order is not None else f"{orders} seeded orders"
    jobs = len(set(journal.job.tolist()))
    yield f"**{journal.name}**: {len(journal.job)} runs of {jobs} jobs, {order}"
    yield ""
    yield f"| known | {' | '.join(names)} | ours - ships | in 90 % (half-width) |"
    yield f"|{'---|' * (len(names) + 3)}"
    for count, point in found.items():
        means = [f"{100 * math.expm1(np.concatenate(point.errors[n]).mean()):.1f}" for n in names]
        gap, spread = (100 * one for one in paired(point))
        covered = [
            f"{100 * np.concatenate(point.inside[n]).mean():.0f} "
            f"({100 * math.expm1(np.median(np.concatenate(point.widths[n]))):.0f})"
            for n in ("ships", "ours")
        ]
        yield (f"| {count} | {' | '.join(means)} | {gap:+.1f} ± {spread:.1f} | "
               f"{' → '.join(covered)} |")  # fmt: skip
    yield ""


def main() -> None:
    """Print the curves, as tables in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=list(SOURCES), help="(default: all)")
    parser.add_argument("--candidates", nargs="*", choices=list(CANDIDATES), default=_USUAL)
    parser.add_argument("--data", type=Path, help="published tables, which say when runs were")
    given = parser.parse_args()
    for name in given.only or SOURCES:
        journal = SOURCES[name](given.data)
        told = lines(journal, curve(journal, given.orders, given.candidates), given.orders)
        sys.stdout.writelines(f"{line}\n" for line in told)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
