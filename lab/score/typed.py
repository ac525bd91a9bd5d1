"""Protocol ``typed``: lines as people type them, asked of the command that is installed.

Each line of ``datasets/questions`` goes through the parser of the terminal and is answered as
JSON, in this process, from a folder that holds the line's files and with nothing of the user's
(``asking_alone``). Scored are the value, its interval and the verdict: exit code 0 says that the
job fits, 3 that it does not, and any other that the line was not understood, which is wrong.

A line whose table constants were fitted on is answered by constants without that table, put where
the command takes them from (``Unseen``); nothing else of the command is changed.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args
from unittest import mock

import numpy as np

from advisor import data as packaged
from advisor.answer import fitted
from advisor.errors import AbsentDataError, ModelError
from advisor.estimate import completion, predictor
from advisor.estimate.case import Constants, constants
from advisor.lab.fit import memory
from advisor.lab.fit.asked import FINETUNE_ROWS_TABLE, fold
from advisor.lab.fit.without import Hidden, Known
from advisor.lab.score.blind import BY_HAND, Refit, Rows
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, by
from advisor.lab.score.scores import Group, score
from advisor.planners.core.errors import GIB
from advisor.planners.goodput import CampaignLaw
from advisor.records import reads

Quantity = Literal[
    "step_time", "training_time", "throughput", "cost", "memory", "fits"
]  # fmt: skip
QUANTITIES: Final[tuple[Quantity, ...]] = get_args(Quantity)
# What a source read of memory -> the record's word for it.
_READ: Final[Mapping[str, str]] = {
    "peak active": "allocated", "peak allocated": "allocated", "reserved": "reserved",
}  # fmt: skip
# Quantity -> where the record has it; memory is one of several readings.
_PLACES: Final[Mapping[str, str]] = {
    "step_time": "step_time_s", "training_time": "training_time_h",
    "throughput": "throughput_samples_per_s", "cost": "cost_usd",
}  # fmt: skip
# (Quantity, unit) -> how many of it one of the record's is; tokens/s go by the record's own units.
UNITS: Final[Mapping[tuple[str, str], float]] = {
    ("step_time", "s"): 1.0, ("training_time", "h"): 1.0, ("training_time", "min"): 60.0,
    ("throughput", "samples/s"): 1.0, ("throughput", "tokens/s"): 1.0, ("cost", "USD"): 1.0,
    ("memory", "GiB"): 1.0, ("memory", "GB (1e9)"): GIB / 1e9, ("fits", ""): 1.0,
}  # fmt: skip
VERDICTS: Final[Mapping[int, str]] = {0: "yes", 3: "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedLine:
    """A line of the bank with its truth, in its own unit; of a verdict nan, and the word."""

    name: str
    line: str
    files: tuple[str, ...]
    quantity: Quantity
    unit: str
    truth: float
    low: float  # low, high: its ends, where the source gives a range
    high: float
    verdict: str  # yes or no where it is asked whether the job fits
    definition: str  # of memory: what was read
    group: str  # FAMILY/NAME: what is left out together

    @property
    def family(self) -> str:
        return self.group.partition("/")[0]

    @property
    def is_of_machines(self) -> bool:
        """Whether several machines are asked about, whose network nobody types."""
        return "--cluster" in self.line


def read_bank(folder: Path) -> list[TypedLine]:
    """Read the bank under a folder of measurements, or in it.

    Raises AbsentDataError if there is none. Raises ModelError if a line is not of this form.
    """
    file = next((one for one in _places(folder) if one.is_file()), None)
    if file is None:
        raise AbsentDataError(f"{folder} holds no questions", hint="it lacks questions.csv")
    reads.note_file("questions/questions", file)
    try:
        with file.open(encoding="utf-8", newline="") as text:
            return [_typed(row) for row in csv.DictReader(text)]
    except (KeyError, ValueError) as error:
        raise ModelError(f"cannot read {file}: {error}", hint="see its README") from error


def _places(folder: Path) -> tuple[Path, Path]:
    return folder / "questions" / "questions.csv", folder / "questions.csv"


def _typed(row: Mapping[str, str]) -> TypedLine:
    quantity, is_verdict = row["quantity"], row["quantity"] == "fits"
    if (quantity, row["unit"]) not in UNITS or (is_verdict and row["truth"] not in ("yes", "no")):
        raise ValueError(f"{row['id']}: {quantity} of {row['truth']} {row['unit']}")
    truth = math.nan if is_verdict else float(row["truth"])
    return TypedLine(
        name=row["id"], line=row["line"], files=tuple(row.get("files", "").split()),
        quantity=quantity,  # type: ignore[arg-type]
        unit=row["unit"], truth=truth,
        low=float(row.get("low") or truth), high=float(row.get("high") or truth),
        verdict=row["truth"] if is_verdict else "", definition=row.get("definition", ""),
        group=row.get("group", "threads"),
    )  # fmt: skip


# Asking as the terminal does.


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the command said: its exit code and, where it answered, the record of the best way."""

    code: int
    record: Mapping[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """Whether the job fits: yes, no, or nothing of a line that was not understood."""
        return VERDICTS.get(self.code, "")

    def value(self, asked: TypedLine) -> tuple[float, float, float]:
        """Return value, low and high in the unit of the question; nan where there is none."""
        scale = UNITS[asked.quantity, asked.unit]
        if self.record is None:
            return math.nan, math.nan, math.nan
        if asked.quantity == "memory":
            read = self.record["memory"]["read_gib"][_READ.get(asked.definition, "monitor")]
            return read["value"] * scale, read["low"] * scale, read["high"] * scale
        found = self.record.get(_PLACES.get(asked.quantity, ""))
        if found is None:
            return math.nan, math.nan, math.nan
        if asked.unit == "tokens/s":
            scale = self.record["units"]["tokens_per_s"] / found["value"]
        return found["value"] * scale, found["low"] * scale, found["high"] * scale

    @property
    def utilisation(self) -> tuple[str, float]:
        """Return the accelerator, and the share of its peak that a transformer's step has."""
        units = (self.record or {}).get("units") or {}
        share = (units.get("utilisation") or {}).get("fraction", math.nan)
        chips = [part["accelerator"] for part in (self.record or {}).get("configuration", ())]
        return str(chips[0]) if chips else "", math.nan if share is None else float(share)


@contextmanager
def asking_alone(files: Path | None = None) -> Iterator[None]:
    """Ask from an empty folder with the bank's files, and without anything of the user's."""
    with tempfile.TemporaryDirectory() as folder:
        home, here = Path(folder) / "home", Path(folder) / "here"
        home.mkdir()
        if files is not None and files.is_dir():
            shutil.copytree(files, here)
        else:
            here.mkdir()
        own = {name: value for name, value in os.environ.items()
               if not name.startswith(("ADVISOR_", "XDG_"))}  # fmt: skip
        own |= {"HOME": str(home)}
        with mock.patch.dict(os.environ, own, clear=True), contextlib.chdir(here):
            yield


def ask(line: str) -> Said:
    """Return what ``advisor`` says to a line, as JSON, in this process."""
    from advisor.cli import program

    out, code = io.StringIO(), 0
    words = ["advisor", *shlex.split(line), "--json"]
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        try:
            program.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except Exception:  # a defect: the terminal shows a traceback, and Python's exit code
            code = 1
    if code:
        return Said(code=code)
    record = json.loads(out.getvalue())
    rows = record.get("plans") or record.get("front")
    return Said(code=code, record=rows[0] if rows else record)


# What is known without a line's table.


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What the command is to know: fitted constants, and the law of whole training runs."""

    constants: Constants
    campaigns: CampaignLaw

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Let the command of this process take these in place of what ships."""
        with (
            mock.patch.object(predictor, "constants", return_value=self.constants),
            mock.patch.object(completion, "campaign_law", return_value=self.campaigns),
        ):
            yield


# Group of lines from a table that nothing was fitted on -> the layouts' table of its publisher.
_SAME_PUBLISHER: Final = {
    "mixtures/NVIDIA-NeMo/Megatron-Bridge": "nemo_bridge",
    "mixtures/NVIDIA/dgxc-benchmarking": "dgxc_bench",
    "stacks/pytorch/ao": "torchtitan",
    "mlperf/gpt3": "mlperf_v4_llm",
    "mlperf/llama2_70b_lora": "mlperf_v4_llm",
    "mlperf/llama31_405b": "mlperf_v4_llm",
    "blackwell": "blackwell",
}


def table_of(group: str) -> str:
    """Return the table of layouts that a group's lines are of, or that its publisher made."""
    family, _, name = group.partition("/")
    return name if family == "layouts" else _SAME_PUBLISHER.get(group, "")


def campaign_folds() -> dict[str, CampaignLaw]:
    """Return the shipped laws of whole runs that were fitted without each family."""
    file = packaged.root("trained_models") / "campaign" / "parameters.json"
    version = completion.SCHEMA_VERSION
    return fitted(dict[str, CampaignLaw], file, train="campaigns", version=version, part="folds")


def without(group: str) -> Unseen:
    """Return constants that never saw a group's rows: the folds that ship, memory fitted again."""
    shipped, whole = constants(), completion.campaign_law()
    family, _, name = group.partition("/")
    if family == "campaigns":
        return Unseen(constants=shipped, campaigns=campaign_folds().get(name, whole))
    if family == "finetune":
        layout = shipped.layout.left_out(fold("model", name), FINETUNE_ROWS_TABLE)
    elif family == "memory":
        shipped = replace(shipped, memory=_memory_without(name))
        return Unseen(constants=shipped, campaigns=whole)
    elif table := table_of(group):
        layout = shipped.layout.left_out(table, table)
        shipped = replace(shipped, memory=_memory_without(table))
    else:
        return Unseen(constants=shipped, campaigns=whole)
    return Unseen(constants=replace(shipped, layout=layout), campaigns=whole)


@cache
def _memory_without(table: str) -> Any:
    rows = _readings()
    kept = rows.is_reading & (rows.rows.table != table)
    if kept.sum() == rows.is_reading.sum():
        return constants().memory
    return memory.fit_rows(rows, kept)


@cache
def _readings() -> memory.MemoryRows:
    with reads.nothing_noted():
        return memory.read_memory(packaged.root("datasets"))


# The protocol.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """The lines, and the folder of the small files that they name."""

    lines: Sequence[TypedLine]
    files: Path

    def mask(self, *quantities: str) -> Bools:
        return np.array([line.quantity in quantities for line in self.lines])

    def ends(self, end: Literal["low", "high"]) -> Floats:
        return np.array([getattr(line, end) for line in self.lines])


TIMED: Final = tuple(_PLACES)


def read_typed(data: Path) -> Questions:
    """Return the bank's lines; those with an interval are the total, memory stands beside."""
    lines = read_bank(data)
    place = next(one for one in _places(data) if one.is_file())
    bank = Bank(lines=lines, files=place.parent / "files")
    timed = bank.mask(*TIMED)
    labels: dict[str, list[str]] = {
        "": [line.quantity for line in lines],
        "asked of ": ["machines" if line.is_of_machines else "one machine" for line in lines],
        "from ": [line.family for line in lines],
    }
    return Questions(
        questions=[f"advisor {line.line}" for line in lines],
        truth=np.array([line.truth for line in lines]),
        unseen=[line.group for line in lines],
        groups={
            name: mask & timed
            for prefix, column in labels.items()
            for name, mask in by(column, prefix=prefix).items()
        },
        counted=timed,
        facts=bank,
    )


def ask_bank(rows: Questions, here: Rows, known: Known | None = None) -> dict[int, Said]:
    """Return what is said to some lines, each by constants without its group's rows."""
    bank: Bank = rows.facts
    found: dict[int, Said] = {}
    with asking_alone(bank.files):
        for group in dict.fromkeys(bank.lines[i].group for i in here):
            unseen = without(group)
            if known is not None:
                unseen = replace(unseen, constants=known.constants)
            with unseen.asked():
                found |= {int(i): ask(bank.lines[i].line)
                          for i in here if bank.lines[i].group == group}  # fmt: skip
    return found


def _values(bank: Bank, said: Mapping[int, Said]) -> Floats:
    """Return value, low and high of the lines that were asked, shape (3, n)."""
    return np.array([one.value(bank.lines[i]) for i, one in said.items()]).reshape(-1, 3).T


def _answers(rows: Questions) -> Answers:
    bank: Bank = rows.facts
    said = dict(sorted(ask_bank(rows, np.arange(len(bank.lines))).items()))
    value, low, high = _values(bank, said)
    chips, shares = zip(*(one.utilisation for one in said.values()), strict=True)
    plain = Answers(value=value, low=low, high=high)
    return replace(
        plain,
        groups=_memory_groups(rows, plain),
        figures=_figures(rows, plain, list(said.values())),
        others={
            "a rate per chip, of the other groups' lines": _same_rate(
                rows, value, np.array(chips), np.array(shares, float)
            ),
            "peak x 40 %": _by_share(bank, value, np.array(shares, float) / _USUAL_SHARE),
        },
        notes=_notes(rows, list(said.values())),
    )


def _memory_groups(rows: Questions, answers: Answers) -> list[Group]:
    """Score memory by what was read."""
    bank: Bank = rows.facts
    asked = bank.mask("memory") & np.isfinite(answers.value)
    kinds = {"": asked} | by((line.definition or "not said" for line in bank.lines), prefix=", ")
    return [
        Group(group=f"memory{name}", scores=answers.scores(rows.truth, mask & asked))
        for name, mask in kinds.items()
        if (mask & asked).any()
    ]


def _figures(rows: Questions, answers: Answers, said: Sequence[Said]) -> dict[str, float]:
    """Return shares answered and verdicts right, and the errors that a table shows."""
    bank: Bank = rows.facts
    understood = np.array([bool(one.verdict) for one in said])
    has_answer = np.isfinite(answers.value)
    answered = np.where(bank.mask("fits"), understood, has_answer)
    figures = {
        "answered_fraction": float(answered.mean()),
        "refused or not understood": float(np.count_nonzero(~answered)),
        "lines": float(len(said)),
    }
    figures |= _verdict_figures(bank, said)
    for name, quantities in (("time", TIMED), ("memory", ("memory",))):
        here = bank.mask(*quantities) & has_answer
        if here.any():
            found = score(answers.value[here], rows.truth[here])
            figures |= {
                f"{name}_median_ape_fraction": found.median_ape_fraction,
                f"{name}_mape_fraction": found.mape_fraction,
                f"{name}: median ratio": found.median_ratio or 0.0,
            }
    timed = bank.mask(*TIMED) & has_answer
    if timed.any() and answers.low is not None and answers.high is not None:
        meets = (answers.low <= bank.ends("high")) & (answers.high >= bank.ends("low"))
        figures["coverage of the truths' ranges"] = float(meets[timed].mean())
    return figures


def _verdict_figures(bank: Bank, said: Sequence[Said]) -> dict[str, float]:
    """Return the share of verdicts that are right, and the wrong ones of either kind."""
    pairs = [
        (line.verdict, one.verdict)
        for line, one in zip(bank.lines, said, strict=True)
        if line.quantity == "fits"
    ]
    if not pairs:
        return {}
    return {
        "verdicts_right_fraction": float(np.mean([true == told for true, told in pairs])),
        "verdicts": float(len(pairs)),
        "said to fit though it failed": float(pairs.count(("no", "yes"))),
        "said not to fit though it ran": float(pairs.count(("yes", "no"))),
    }


def _notes(rows: Questions, said: Sequence[Said]) -> tuple[str, ...]:
    bank: Bank = rows.facts
    asked = list(zip(bank.lines, said, strict=True))
    wrong = [line.name for line, one in asked if line.verdict and one.verdict != line.verdict]
    refused = [line.name for line, one in asked if not line.verdict and one.record is None]
    odd = sorted({line.name for line, one in asked if one.code not in VERDICTS})
    told = (("wrong verdicts", wrong), ("without an answer", refused), ("not understood", odd))
    return tuple(f"{what}: {', '.join(names)}" for what, names in told if names)


# Simpler rules: an accelerator reaches some share of its peak, whatever the job.

_USUAL_SHARE: Final = 0.4


def _by_share(bank: Bank, value: Floats, factor: Floats) -> Answers:
    """Return answers at another share of the peak: rates go by its inverse."""
    timed, is_rate = bank.mask(*TIMED), bank.mask("throughput")
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(is_rate, value / factor, value * factor)
    return Answers(value=np.where(timed & np.isfinite(found) & (found > 0), found, np.nan))


def _same_rate(rows: Questions, value: Floats, chips: Any, shares: Floats) -> Answers:
    """Take the median share of the peak that other groups' lines reach on the same accelerator."""
    bank: Bank = rows.facts
    groups = np.array([line.group for line in bank.lines])
    is_rate = bank.mask("throughput")
    slower = np.where(is_rate, value / rows.truth, rows.truth / value)
    reached = np.where(bank.mask("step_time", "throughput"), shares / slower, np.nan)
    factor = np.full(value.size, np.nan)
    for i in range(value.size):
        known = np.isfinite(reached) & (groups != groups[i])
        alike = known & (chips == chips[i])
        if known.any():
            factor[i] = shares[i] / np.median(reached[alike if alike.any() else known])
    return _by_share(bank, value, factor)


def _hidden(rows: Questions) -> list[Hidden]:
    """Return what a line's group is in the fitted tables."""
    found = []
    for line in rows.facts.lines:
        family, _, name = line.group.partition("/")
        table = name if family == "memory" else table_of(line.group)
        found.append(
            Hidden(
                devices=frozenset(["RTX-3090"] if family == "recorded" else []),
                tables=frozenset([table] if table else []),
                models=frozenset([name] if family == "finetune" else []),
            )
        )
    return found


def _ask_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    said = ask_bank(rows, here, known)
    value, low, high = _values(rows.facts, {int(i): said[int(i)] for i in here})
    return Answers(value=value, low=low, high=high)


_OPERATORS: Final = (
    "the device model, which answers for images, for AMD's cards and in fp32: fitted on timm's "
    "steps among others"
)
_PRIORS: Final = "centres and widths of the layout model's priors: chosen on rows of its tables"
TYPED: Final = Protocol(
    name="typed",
    description="lines as people type them, asked of the command; a line's table left out",
    senses={
        "answered_fraction": "higher",
        "verdicts_right_fraction": "higher",
        "refused or not understood": "fewer",
        "said *": "fewer",
        "lines": "more",
        "verdicts": "more",
        "time_*_fraction": "lower",
        "memory_*_fraction": "lower",
    },
    rows=read_typed,
    answer=_answers,
    seen=(BY_HAND, _PRIORS),
    fitted_on=(_OPERATORS,),
    blind=Refit(hidden=_hidden, ask=_ask_blind, still_seen=(BY_HAND, _PRIORS)),
    notes=(
        "answered by constants without the line's rows: lines of layouts, blackwell and MLPerf "
        "without their table, of fine-tuning without their model, of whole training runs without "
        "their family, of memory without their source, of mixtures and torchao without the table "
        "of the same publisher; nothing was fitted on the lines of threads, AMD's cards, speed "
        "runs and the lent H200. Not without: "
        "timm's steps (the device model has no folds), what was learned of our own runs, which "
        "covers no such job, and the other tables of a publisher: the same job on other software "
        "may be among them",
        "inside means that the truth, of a range its middle, lies in the 90 % interval; that the "
        "range meets it is a figure. Memory is compared by what the source read (a monitor's "
        "where it does not say), and is not in the total",
        "a verdict is the exit code: 0 fits, 3 does not; a line that is not understood (2) is "
        "wrong, and not answered",
        "a rate per chip: the median share of the peak that the lines of other groups reach on "
        "it; both simpler rules count operations as the command does",
    ),
)
