"""Protocol ``stacks``: steps of PyTorch-native stacks in a release, the whole source left out.

Rows of ``lab.fit.stacks`` are asked as their users would: model, batch, layout, precision,
machines, and the stack in its release; beside it the stack without a release, and without its
name. Constants were fitted without the row's source, intervals are of the other tables. Besides,
what fp8 and fp4 gain over 16 bits in pairs of rows that differ in nothing else, said and measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.estimate.knowledge.layout_model import LayoutModel, load
from advisor.jobs.model_facts import restacked
from advisor.lab.fit.asked import AskedRun, columns_of
from advisor.lab.fit.stacks import LIMITED, stacks_read
from advisor.lab.fit.without import Hidden, Known
from advisor.lab.score import baselines
from advisor.lab.score.asked import RunAnswers, ask, ask_plainly, predictor_by
from advisor.lab.score.blind import Refit, Rows, predictor_with
from advisor.lab.score.harness import Answers, Floats, Protocol, Questions, by
from advisor.planners.core.setup import DEFAULT_SETUP

_SOURCE: Final = {LIMITED: "torchao"}  # a table of the same source as another


def read_stacks(data: Path) -> Questions:
    """Return the runs; those under an unsaid limit of power are not in the mean."""
    runs, left_out = stacks_read(data)
    labels = [r.table for r in runs], [f"{r.table} on {r.gpu}" for r in runs]
    return Questions(
        questions=[
            f"seconds of a step of {r.row_id}: {r.model} in {r.precision} by {r.stack} on "
            f"{r.layout.devices} x {r.gpu}"
            for r in runs
        ],
        truth=np.array([r.measured_s for r in runs]),
        unseen=[f"layouts/{_source(r)}" for r in runs],
        groups={name: mask for some in labels for name, mask in by(some, is_sorted=False).items()},
        counted=np.array([r.table != LIMITED for r in runs]),
        facts=runs,
        raw=baselines.layout_columns(columns_of(runs), [_source(r) for r in runs]),
        notes=(f"{left_out} rows say too little, or are of no stack of ours",),
    )


def _source(run: AskedRun) -> str:
    return _SOURCE.get(run.table, run.table)


def _without_source(model: LayoutModel, source: str) -> LayoutModel:
    for table in (source, *(one for one, of in _SOURCE.items() if of == source)):
        model = model.left_out(source, table)
    return model


def _said(runs: Sequence[AskedRun], *, is_plain: bool = False) -> Answers:
    found, model = np.full((3, len(runs)), np.nan), load()
    for source, mask in by([_source(r) for r in runs], is_sorted=False).items():
        here = np.flatnonzero(mask)
        asking = predictor_by(_without_source(model, source))
        some = [runs[i] for i in here.tolist()]
        said: RunAnswers = ask_plainly(asking, some) if is_plain else ask(asking, some)
        found[:, here] = said.step_s, said.low_s, said.high_s
    return Answers(value=found[0], low=found[1], high=found[2])


def _unreleased(run: AskedRun) -> AskedRun:
    stack = run.stack.partition("@")[0]
    return replace(run, stack=stack, setup=restacked(DEFAULT_SETUP, {"stack": stack}))


def _stack_answers(rows: Questions) -> Answers:
    runs: Sequence[AskedRun] = rows.facts
    told = _said(runs)
    return replace(
        told,
        others={
            "without its release": _said([_unreleased(r) for r in runs]),
            "without its name": _said(runs, is_plain=True),
        },
        figures=_gains(runs, told.value, rows.truth),
    )


def _gains(runs: Sequence[AskedRun], said_s: Floats, measured_s: Floats) -> dict[str, float]:
    """Return the gain of low precision of each table and card, said and measured."""
    found: dict[str, list[tuple[float, float]]] = {}
    for wide, narrow in _pairs(runs):
        if np.isfinite(said_s[wide]) and np.isfinite(said_s[narrow]):
            one = runs[narrow]
            name = f"gain of {one.precision} by {one.table} on {one.gpu}"
            gain = (said_s[wide] / said_s[narrow], measured_s[wide] / measured_s[narrow])
            found.setdefault(name, []).append((float(gain[0]), float(gain[1])))
    figures: dict[str, float] = {}
    for name, gains in found.items():
        said, measured = np.exp(np.mean(np.log(gains), axis=0)).tolist()
        figures |= {f"{name}, said": said, f"{name}, measured": measured}
    return figures


def _pairs(runs: Sequence[AskedRun]) -> Iterator[tuple[int, int]]:
    """Yield rows in 16 bits, and in fewer, that have all else in common."""
    for wide, one in enumerate(runs):
        for narrow, other in enumerate(runs):
            is_pair = one.precision == "bf16" and other.precision != "bf16"
            if is_pair and all(
                getattr(one, name) == getattr(other, name)
                for name in ("table", "gpu", "transformer", "layout", "stack")
            ):
                yield wide, narrow


def _ask_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    said = ask(predictor_with(known), [rows.facts[i] for i in here])
    return Answers(value=said.step_s, low=said.low_s, high=said.high_s)


def _other_sources(rows: Questions, _: object) -> Floats:
    table = columns_of(rows.facts)
    sources = np.array([_source(run) for run in rows.facts])
    return baselines.efficiency_of_other_models(replace(table, model=sources))


_SEEN: Final = (
    "the priors of casts apart and of CDNA 3: counted, with torchao's rows in sight",
    "that torchao's H100s are Meta's (500 W): read off its source, looked for because of the rows",
)
STACK_STEPS: Final = Protocol(
    name="stacks",
    description="steps of PyTorch-native stacks in their release, on held-out sources",
    senses={"gain *": "neutral"},
    rows=read_stacks,
    answer=_stack_answers,
    seen=_SEEN,
    baselines={"constant efficiency of the other sources": _other_sources},
    blind=Refit(
        hidden=lambda rows: [
            Hidden(tables=frozenset({run.table, _source(run), LIMITED})) for run in rows.facts
        ],
        ask=_ask_blind,
        still_seen=_SEEN,
    ),
    notes=(
        "rows on B200s whose limit of power is unsaid are asked, not counted",
        "row-wise scales are asked as the other recipes are: no flag names them",
    ),
)
