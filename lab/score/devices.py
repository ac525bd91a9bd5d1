"""Protocols of known jobs on devices that they were never on: ``gpu``, ``gpu-mlperf``, ``job``.

Also any table of such cells (``table_of_cells``), its devices left out one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.estimate.case import Constants
from advisor.lab.data import LAMBDA, MLPERF, PROFET, TRAINPRED
from advisor.lab.fit.without import Hidden, Known
from advisor.lab.score import baselines
from advisor.lab.score.blind import BY_HAND, Refit
from advisor.lab.score.cells import SEEN, CellTable, cell_table, device_names, left_out
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, by
from advisor.lab.score.raw import RawColumns
from advisor.lab.score.scores import Group
from advisor.machines.devices import suite_device
from advisor.records import RunRecord

# Known faults of Lambda's table. They stay in the score and are counted apart as "cleaned": the
# system copies "V100 32GB"; an RTX 6000 Ada under another name; 3,029 where its neighbours have
# 50,000.
COPIED_SYSTEM: Final = "V100"
MISLABELLED_SYSTEM: Final = "Ada A6000"
SLIP: Final = ("RTX-A4000", "fp16", "waveglow")
# Tinygrad's submissions: 2 to 2.4 times slower than the boards' other software.
UNUSUAL_SOFTWARE: Final = frozenset({"RTX-4090", "RX-7900XTX", "MI325X"})
# Beyond this ratio to what other devices measured, no device is that fast: the units are wrong.
# (The worst known slip of a published table is a factor of 14.)
IMPLAUSIBLE: Final = 50.0
_OF_OTHER_JOBS: Final = "five round constants of what other jobs say of a device"
_RATIOS: Final = {
    "ratio of peak FLOP/s": baselines.each_other_device("peak"),
    "ratio of bandwidth": baselines.each_other_device("bandwidth"),
    "ratio of their geometric mean": baselines.each_other_device("both"),
    "log-linear, shared exponents": baselines.log_linear(is_per_job=False),
    "log-linear, exponents per job": baselines.log_linear(is_per_job=True),
}


def _rows(table: CellTable, groups: Mapping[str, Bools] | None = None) -> Questions:
    frame = table.frame
    told = zip(frame["model"], frame["precision"], frame["gpu"], frame["batch"], strict=True)
    return Questions(
        questions=[
            f"samples/s of {model} in {precision} on {gpu} at batch {batch:g}: recommend --runs, "
            "its runs on the other devices"
            for model, precision, gpu, batch in told
        ],
        truth=np.exp(table.cells.log_throughput),
        unseen=[f"steps on {gpu}" for gpu in frame["gpu"]],
        groups=by(frame["gpu"]) if groups is None else groups,
        facts=table,
        raw=RawColumns.of(
            {
                "batch": frame["batch"],
                "peak": table.cells.peak,
                "bandwidth": table.cells.bandwidth,
            },
            frame["gpu"],
            {"model": frame["model"], "precision": frame["precision"]},
        ),
        notes=table.notes,
    )


def _answers(
    table: CellTable, groups: NDArray[np.str_], families: NDArray[np.str_] | None = None,
    scored: Bools | None = None,
    constants_of: Callable[[pd.Series], Constants] | None = None,
) -> Answers:  # fmt: skip
    mean, log_sd = left_out(table, groups, scored, families=families, constants_of=constants_of)
    return Answers.spread(np.exp(mean), log_sd)


def _device_left_out(rows: Questions) -> Answers:
    return _answers(rows.facts, rows.facts.frame["device"].to_numpy())


def _hidden(rows: Questions) -> list[Hidden]:
    frame = rows.facts.frame
    names = {gpu: frozenset(device_names(of)) for gpu, of in frame["gpu"].groupby(frame["device"])}
    return [Hidden(devices=names[device]) for device in frame["device"]]


def _ask_blind(
    rows: Questions, here: NDArray[np.intp], known: Known, column: str | None = None
) -> Answers:
    """Answer the cells of one device with what is known without it."""
    frame = rows.facts.frame
    found = _answers(
        rows.facts, frame["device"].to_numpy(),
        families=None if column is None else frame[column].to_numpy(str),
        scored=np.isin(np.arange(len(frame)), here), constants_of=lambda _: known.constants,
    )  # fmt: skip
    return found.take(here)


_BLIND: Final = Refit(hidden=_hidden, ask=_ask_blind, still_seen=(*SEEN[:1], BY_HAND))


def read_gpu(data: Path) -> Questions:
    """Return Lambda's cells of one GPU; labels as the table has them."""
    published = LAMBDA.read("throughputs", data)
    return _rows(replace(cell_table(lambda_cells(published)), published=published))


def lambda_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median throughput of one GPU by (gpu, precision, model)."""
    return one_device_cells(rows[rows["accelerators"] == 1])


def one_device_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median throughput by (gpu, precision, model) of throughputs of one device."""
    cells = rows.groupby(["accelerator", "precision", "model"]).agg(
        throughput=("units_per_s", "median"),
        batch=("batch_per_accelerator", "median"),
        count=("units_per_s", "size"),
    )
    return cells.reset_index().rename(columns={"accelerator": "gpu"})


def _cleaned(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["system"] != COPIED_SYSTEM].copy()
    rows.loc[rows["system"] == MISLABELLED_SYSTEM, "accelerator"] = "RTX-6000-Ada"
    gpu, precision, model = SLIP
    is_job = (rows["precision"] == precision) & (rows["model"] == model)
    return rows[~((rows["accelerator"] == gpu) & is_job)]


def _gpu_figures(rows: Questions, answers: Answers) -> dict[str, float]:
    table: CellTable = rows.facts
    unseen = _answers(table, table.frame["chip"].to_numpy())
    assert table.published is not None  # ``read_gpu`` keeps it
    clean = _rows(cell_table(lambda_cells(_cleaned(table.published))))
    of_clean = _device_left_out(clean)
    figures: dict[str, float] = {}
    for precision in ("fp16", "fp32"):
        mask = (table.frame["precision"] == precision).to_numpy()
        own = answers.scores(rows.truth, mask)
        kept = (clean.facts.frame["precision"] == precision).to_numpy()
        cleaned = of_clean.scores(clean.truth, kept)
        chip = unseen.scores(rows.truth, mask)
        figures |= (
            own.named(f"{precision} ", "median APE", "MAPE")
            | {
                f"{precision} coverage of 90 % intervals": own.coverage or 0.0,
                f"{precision} mean half-width": own.width or 0.0,
            }
            | chip.named(f"{precision} chip family left out, ", "median APE")
            | cleaned.named(f"{precision} cleaned labels, ", "median APE", "MAPE")
        )
    cards = table.frame.groupby("chip")["device"].nunique()
    figures |= sibling_figures(
        "GPUs", (table.frame["chip"].map(cards) == 1).to_numpy(), rows.truth, answers
    )
    scores = [answers.scores(rows.truth, mask) for mask in rows.groups.values()]
    return figures | {"worst GPU's coverage": min(s.coverage or 0.0 for s in scores)}


def sibling_figures(
    what: str, is_alone: Bools, truth: Floats, answers: Answers
) -> dict[str, float]:
    """Score apart the devices whose chip no other card has."""
    figures: dict[str, float] = {}
    for name, mask in (("without a sibling", is_alone), ("with a sibling", ~is_alone)):
        if (mask & np.isfinite(answers.value)).any():
            scores = answers.scores(truth, mask)
            figures |= scores.named(f"{what} {name}: ", "rows", "median APE", "MAPE", "coverage")
    return figures


GPU: Final = Protocol(
    name="gpu",
    description="throughput of known jobs, each GPU type left out (both precisions at once)",
    rows=read_gpu,
    answer=_device_left_out,
    seen=SEEN,
    fitted_on=SEEN[1:],
    blind=_BLIND,
    baselines=_RATIOS,
    figures=_gpu_figures,
    notes=(
        "labels as in the table; 'cleaned' drops a copied V100 and a slip, renames a board",
        "asked as `--runs`: the same job's steps on the other GPUs, at the batch run there",
    ),
)


def read_mlperf(data: Path) -> Questions:
    """Return MLPerf's cells of small systems."""
    return _rows(cell_table(mlperf_cells(MLPERF.read("entries", data))))


def mlperf_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median throughput per accelerator of small systems by (accelerator, model)."""
    rows = rows[
        (rows["division"] == "closed")
        & rows["accelerators"].between(2, 16)
        & (rows["samples_per_s_per_accelerator"] > 0)
    ]
    rows = rows.assign(batch=rows["global_batch"] / rows["accelerators"])
    found = rows.groupby(["accelerator", "model"]).agg(
        throughput=("samples_per_s_per_accelerator", "median"),
        batch=("batch", "median"),
        count=("samples_per_s_per_accelerator", "size"),
    )
    found = found.reset_index().rename(columns={"accelerator": "gpu"}).assign(precision="fp16")
    return found[[_is_gpu(name) for name in found["gpu"]]].reset_index(drop=True)


def _is_gpu(name: str) -> bool:
    device = suite_device(name)
    return "?" not in name and (device is None or device.kind == "gpu")


def _usual_software(rows: Questions, answers: Answers) -> dict[str, float]:
    usual = ~rows.facts.frame["gpu"].isin(UNUSUAL_SOFTWARE).to_numpy()
    plain = answers.scores(rows.truth, usual)
    return plain.named("without boards of unusual software, ", "median APE", "MAPE")


# Submissions are tuned by different organisations and rounds: errors belong to software more than
# to devices.
GPU_MLPERF: Final = Protocol(
    name="gpu-mlperf",
    description="samples/s per accelerator of known jobs, each accelerator type left out",
    rows=read_mlperf,
    answer=_device_left_out,
    seen=SEEN,
    fitted_on=SEEN[1:],
    blind=_BLIND,
    baselines=_RATIOS,
    figures=_usual_software,
    notes=(
        "GPUs of stated type; TPU, IPU, Gaudi and accelerators of unknown size are not scored",
        "asked as `--runs`: the same job's steps on the other accelerators",
    ),
)


def job_cells(data: Path) -> pd.DataFrame:
    """Return samples/s by GPU, job and batch of PROFET and trainpred: means of the repeats.

    Raises ModelError if neither collection is there.
    """
    found = []
    if PROFET.has("jobs", data):
        found += list(_steps("PROFET", PROFET.read_runs("jobs", data)))
    if TRAINPRED.is_in(data):
        found += list(_steps("trainpred", TRAINPRED.read_runs("epochs", data)))
    if not found:
        raise ModelError(
            f"neither {PROFET.title} nor {TRAINPRED.title} are in {data}",
            hint="lay it out like shared/data",
        )
    steps = pd.DataFrame(found).drop_duplicates()
    keys = ["collection", "gpu", "model", "batch"]
    mean = steps.groupby(keys)["step_s"].agg(["mean", "size"]).reset_index()
    mean["throughput"] = mean["batch"] / mean["mean"]
    mean["family"] = mean["collection"] + ": " + mean["model"].str.split().str[1]
    return mean.rename(columns={"size": "count"}).assign(precision="fp32")


def _steps(collection: str, runs: list[RunRecord]) -> Iterator[dict[str, str | float]]:
    """Yield the step of every run, and of the run on the anchor beside it."""
    for run in runs:
        facts = {k: v for k, v in run.job.facts.items() if isinstance(v, float)}
        batch = facts["batch"]
        steps = np.ceil(facts.get("epoch_samples", batch) / batch)
        size = "-".join(f"{facts[n]:g}" for n in ("image_pixels", "epoch_samples") if n in facts)
        timed = [(run.configuration[0].accelerator, run.time_s)]
        if run.anchor is not None:
            timed.append((run.anchor.machines.accelerator, run.anchor.time_s))
        for gpu, seconds in timed:
            yield {
                "collection": collection, "gpu": str(gpu), "batch": batch,
                "model": f"{collection} {run.job.family} {size}",
                "step_s": float(seconds or np.nan) / steps,
            }  # fmt: skip


def _read_jobs(data: Path) -> Questions:
    table = cell_table(job_cells(data))
    frame = table.frame
    labels = [f"{s} on {gpu}" for s, gpu in zip(frame["collection"], frame["gpu"], strict=True)]
    return _rows(table, by(frame["collection"]) | by(labels))


def by_other_jobs(rows: Questions, scored: Bools | None = None) -> Answers:
    """Answer cells, or some of them, by the job's runs elsewhere and all of other families'."""
    frame = rows.facts.frame
    device, family = frame["device"].to_numpy(), frame["family"].to_numpy(str)
    return _answers(rows.facts, device, families=family, scored=scored)


def _by_runs_and_other_jobs(rows: Questions) -> Answers:
    table: CellTable = rows.facts
    device = table.frame["device"].to_numpy()
    alone = _answers(table, device)
    found = by_other_jobs(rows)
    without = replace(alone, value=np.where(np.isfinite(found.value), alone.value, np.nan))
    groups = {"other jobs unknown": np.ones(len(table.frame), bool)} | {
        f"{name}, other jobs unknown": mask for name, mask in by(table.frame["collection"]).items()
    }
    return replace(
        found,
        groups=[Group(group=g, scores=without.scores(rows.truth, m)) for g, m in groups.items()],
    )


JOB: Final = Protocol(
    name="job",
    description="samples/s of a job known by its steps on other GPUs and by other jobs' there",
    rows=_read_jobs,
    answer=_by_runs_and_other_jobs,
    seen=(*SEEN, _OF_OTHER_JOBS),
    fitted_on=SEEN[1:],
    blind=Refit(
        hidden=_hidden,
        ask=partial(_ask_blind, column="family"),
        still_seen=(SEEN[0], _OF_OTHER_JOBS, BY_HAND),
    ),
    baselines={
        "nearest run": baselines.of_the_jobs_runs("nearest"),
        "mean of the runs": baselines.of_the_jobs_runs("mean"),
        "log-linear in peak and bandwidth": baselines.of_the_jobs_runs("slope"),
        "mean of the runs, each times the mean ratio of other jobs": baselines.of_the_jobs_runs(
            "carried"
        ),
    },
    notes=(
        "asked as `--runs TABLE --runs-of JOB`: the job's steps at every batch on the other "
        "GPUs, those of jobs of other families on all GPUs, the batch asked",
        "trainpred's small networks wait for their input and for Python, which runs alone do "
        "not tell from computing",
    ),
)


def table_of_cells(
    protocol: str, table: pd.DataFrame, reference: pd.DataFrame | None
) -> tuple[Protocol, Questions]:
    """Return the question of any table of cells, predicted from its other devices.

    A reference table of the same suite is known beside it; whatever either says of the device
    itself is left out. Columns are those of ``cell_table``.

    Raises ModelError if no row has a known device.
    """
    joined = cell_table(_joined(table, reference))
    is_scored = joined.frame["is_scored"].to_numpy(bool)
    rows = _rows(joined, by(joined.frame["device"]))
    asked = replace(rows, truth=np.where(is_scored, rows.truth, np.nan), notes=())
    return replace(_TABLE, name=protocol), asked


def _table_answers(rows: Questions) -> Answers:
    """Answer the table's cells.

    Raises ModelError if nothing can be predicted, or a throughput is impossible; the error shows
    the row.
    """
    table: CellTable = rows.facts
    is_scored = np.isfinite(rows.truth)
    found = _answers(table, table.frame["device"].to_numpy(), scored=is_scored)
    answered = is_scored & np.isfinite(found.value)
    if not answered.any():
        raise ModelError(
            "no job of the table was measured on another device",
            hint="add rows of the same jobs on other devices, or give --data",
        )
    ratio = np.where(answered, np.abs(np.log(rows.truth / found.value)), 0.0)
    worst = int(np.argmax(ratio))
    if ratio[worst] > math.log(IMPLAUSIBLE):
        row = table.frame.iloc[worst][["gpu", "precision", "model", "throughput"]].to_dict()
        raise ModelError(
            f"implausible: {row} is {rows.truth[worst] / found.value[worst]:.3g} times what other "
            "devices measured",
            hint="are the units samples/s of one device? correct the row or remove it",
        )
    unknown = int((is_scored & ~answered).sum())
    notes = (f"{unknown} rows of jobs known on no other device are not scored",) if unknown else ()
    return replace(found, notes=(*notes, *table.notes))


def _joined(table: pd.DataFrame, reference: pd.DataFrame | None) -> pd.DataFrame:
    """Return the rows with devices under one name each, the reference's without the table's."""
    frame = table.assign(is_scored=True, gpu=_canonical(table["gpu"]))
    if reference is None:
        return frame
    others = reference.assign(is_scored=False, gpu=_canonical(reference["gpu"]))
    others = others[~others["gpu"].isin(frame["gpu"])]
    return pd.concat([others, frame], ignore_index=True)


def _canonical(names: pd.Series) -> list[str]:
    """Return one name a device: the same card in two makers' machines is left out of both."""
    devices = map(suite_device, names)
    return [n if d is None else d.name for n, d in zip(names, devices, strict=True)]


_TABLE: Final = Protocol(
    name="table",
    description="throughput of known jobs, each device of the table left out",
    rows=_read_jobs,  # a table brings its own
    answer=_table_answers,
    seen=("nothing of the table, if it was never looked at; what is usual of jobs is Lambda's",),
    baselines={
        "mean of the other devices": baselines.mean_of_other_devices("nothing"),
        "peak FLOP/s ratio (const. MFU)": baselines.mean_of_other_devices("peak"),
        "bandwidth ratio": baselines.mean_of_other_devices("bandwidth"),
        "geometric mean of both ratios": baselines.mean_of_other_devices("both"),
        "plain roofline": baselines.cell_roofline,
    },
)
