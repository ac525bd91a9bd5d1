"""The protocol ``recorded``: a script recorded on a laptop, asked for a GPU that it never saw.

Every script was profiled for four steps on a processor, in two samples, and is asked with the
flags of the published row: ``predict --job FILE --gpu G --batch 12 --precision fp16``. Left out in
turn: the GPU, its architecture, and the family of networks, in the device model's constants and in
the process of its errors both. The fits know the suites of ``described`` and the other rows here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.catalogue import Catalogue
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.lab.data.recorded import (
    LentStep,
    RecordedStep,
    double_steps,
    family_of,
    lent_steps,
    recorded_steps,
    rehearsed_job,
)
from advisor.lab.fit.described import read_steps, recorded_rows
from advisor.lab.fit.described_columns import MeasuredStep, columns
from advisor.lab.fit.without import Known, of_devices
from advisor.lab.score import baselines
from advisor.lab.score.asked import predictor, step_on
from advisor.lab.score.blind import BY_HAND, Refit, Rows, predictor_with, spread
from advisor.lab.score.cells import fitted_on
from advisor.lab.score.harness import Answers, Floats, Protocol, Questions, Rule, by
from advisor.lab.score.scores import Group
from advisor.planners.core.nouns import Work
from advisor.planners.step.calibrate import job_features
from advisor.planners.step.device_rates import unmeasured

WAYS: Final[Mapping[str, Callable[[RecordedStep], str]]] = {
    "GPU": lambda s: s.device.name,
    "architecture": lambda s: s.device.architecture,
    "family of networks": lambda s: s.family,
}
NEIGHBOURS: Final = 5
_SMALL_BATCH: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The steps that are asked, with their work; the other suites' steps."""

    steps: list[RecordedStep]
    works: list[Work]
    own: list[MeasuredStep]
    known: list[MeasuredStep]
    double: list[RecordedStep]  # in double precision, which no fit has seen
    rehearsed: list[RecordedStep]  # the same steps where the script was rehearsed, too
    lent: list[LentStep]  # on a GPU of which no step is in any fit


def read_recorded(data: Path) -> Questions:
    """Return every published step of a script that was recorded, one GPU each."""
    steps = recorded_steps(data)
    rows = recorded_rows(data)
    return Questions(
        questions=[
            f"seconds of a step of {s.suite}'s {s.network}, recorded on a processor in 2 samples: "
            f"--gpu {s.device.name} --batch {s.batch} --precision {s.precision}"
            for s in steps
        ],
        truth=np.array([s.seconds for s in steps]),
        unseen=[f"steps on {s.device.name}" for s in steps],
        groups=by(f"{s.suite}, {s.precision}, batch {_size(s.batch)}" for s in steps)
        | by(f"{s.device.name}" for s in steps),
        facts=_Facts(
            steps=steps,
            works=[r.work for r in rows],
            own=rows,
            known=read_steps(data),
            double=double_steps(data),
            rehearsed=recorded_steps(data, rehearsed_job),
            lent=list(lent_steps()),
        ),
        raw=baselines.described_columns(columns(rows), [s.device.name for s in steps]),
    )


def _size(batch: int) -> str:
    return f"{batch}" if batch <= _SMALL_BATCH else "of 32 and more"


def without_group(facts: _Facts, way: str, group: str) -> Predictor:
    """Return the product with constants and errors fitted without a group of rows."""
    of = WAYS[way]
    described = [s for s in facts.known if not _is_of(s, way, group)]
    own = [r for r, s in zip(facts.own, facts.steps, strict=True) if of(s) != group]
    return _fitted_on([*described, *own])


def _fitted_on(kept: list[MeasuredStep]) -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False), constants=fitted_on(kept), learned=None)


def _is_of(step: MeasuredStep, way: str, group: str) -> bool:
    """Whether a step of another suite is of the group: ResNets and VGGs are in several."""
    if way == "family of networks":
        return group[:3] in step.family
    return group in (step.device.name, step.device.architecture)


def _answers_by(rows: Questions, way: str) -> tuple[Answers, Answers, Answers]:
    """Return the answers to the rows, to the steps in double precision, and by rehearsal."""
    facts: _Facts = rows.facts
    steps = [*facts.steps, *facts.double, *facts.rehearsed]
    value, log_sd = np.full((2, len(steps)), np.nan)
    labels = [WAYS[way](s) for s in steps]
    for group in dict.fromkeys(labels):
        asking = without_group(facts, way, group)
        for i in (i for i, label in enumerate(labels) if label == group):
            step = steps[i]
            value[i], log_sd[i] = step_on(asking, step.job, unmeasured(step.device))
    ends = np.cumsum([len(facts.steps), len(facts.double)])
    first, double, rehearsed = (
        Answers.spread(*one)
        for one in zip(np.split(value, ends), np.split(log_sd, ends), strict=True)
    )
    return first, double, rehearsed


def _ask_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    """Answer steps with what is known without their GPU, what a call takes among it."""
    facts, by_others = rows.facts, predictor_with(known)
    return spread(
        [
            step_on(by_others, _with_call(facts.steps[i].job, known), unmeasured(device))
            for i in here
            for device in [facts.steps[i].device]
        ]
    )


def _with_call(job: Job, known: Known) -> Job:
    if known.call_s is None or job.work is None:
        return job
    return replace(job, work=replace(job.work, call_s=known.call_s))


def _recorded_answers(rows: Questions) -> Answers:
    both = {way: _answers_by(rows, way) for way in WAYS}
    found = {way: answers for way, (answers, *_) in both.items()}
    groups: list[Group] = []
    figures: dict[str, float] = {}
    in_double = np.array([s.seconds for s in rows.facts.double])
    for way, (_, answers, _) in both.items():
        scores = answers.scores(in_double)
        figures |= scores.named(f"{way} left out, fp64: ", "MAPE", "median APE", "coverage")
    figures["rows in fp64"] = float(in_double.size)
    figures |= _rehearsed(rows, *both["GPU"][::2]) | _lent(rows.facts.lent)
    for way, answers in found.items():
        label = f"{way} left out"
        groups.append(Group(group=label, scores=answers.scores(rows.truth)))
        assert answers.low is not None
        assert answers.high is not None
        ends = answers.high / answers.low
        figures[f"{label}: upper over lower end, median"] = float(np.nanmedian(ends))
        for name, mask in rows.groups.items():
            if name.startswith(("torchvision", "timm")):
                scores = answers.scores(rows.truth, mask)
                figures |= scores.named(f"{label}, {name}: ", "median APE", "coverage")
    first = found["GPU"]
    figures |= _regrets(rows, found["family of networks"].value)
    figures["rows without an answer"] = float(np.count_nonzero(~np.isfinite(first.value)))
    return replace(first, groups=groups, figures=figures)


def _rehearsed(rows: Questions, recorded: Answers, rehearsed: Answers) -> dict[str, float]:
    """Return the errors on the steps that are told by rehearsal too, and by which of both."""
    facts: _Facts = rows.facts
    place = {(s.suite, s.network, s.file, s.precision, s.batch): i
             for i, s in enumerate(facts.steps)}  # fmt: skip
    same = np.array([place[s.suite, s.network, s.file, s.precision, s.batch]
                     for s in facts.rehearsed], np.intp)  # fmt: skip
    truth = np.array([s.seconds for s in facts.rehearsed])
    names = "median APE", "MAPE", "coverage"
    ratio = rehearsed.value / recorded.value[same]
    return {
        "rows that were rehearsed": float(truth.size),
        **rehearsed.scores(truth).named("rehearsed: ", *names),
        **recorded.take(same).scores(truth).named("the same recorded: ", *names),
        "rehearsed over recorded, mean of |ln|": float(np.mean(np.abs(np.log(ratio)))),
    }


def _lent(steps: Sequence[LentStep]) -> dict[str, float]:
    """Return the product's errors on the scripts that ran on lent GPUs."""
    asked = [step_on(predictor(), s.job, s.device) for s in steps]
    truth = np.array([s.seconds for s in steps])
    scores = Answers.spread(*np.array(asked).reshape(-1, 2).T).scores(truth)
    names = "median APE", "MAPE", "bias", "coverage"
    return {"rows on lent GPUs": float(truth.size), **scores.named("lent GPUs: ", *names)}


def _regrets(rows: Questions, of_family: Floats) -> dict[str, float]:
    """Return what choosing the GPU of the least step costs over the fastest, less 1.

    Of every script, batch and precision on several GPUs: by one predictor that knows none of these
    GPUs, and by one that knows them with other families of networks. Answers of which each knows
    the other GPUs cannot be held against one another: the slower a machine is than its card, the
    faster it seems to those that know the others alone. One that was measured on two machines
    counts as their mean.
    """
    facts: _Facts = rows.facts
    asked: dict[tuple[str, str, int, str], dict[str, list[int]]] = {}
    for i, s in enumerate(facts.steps):
        of = asked.setdefault((s.suite, s.network, s.batch, s.precision), {})
        of.setdefault(s.device.name, []).append(i)
    several = {key: of for key, of in asked.items() if len(of) > 1}
    truth = {
        key: {name: float(np.exp(np.mean(np.log(rows.truth[on])))) for name, on in of.items()}
        for key, of in several.items()
    }
    out = {name for of in several.values() for name in of}
    blind = _fitted_on([s for s in [*facts.known, *facts.own] if s.device.name not in out])
    lost: dict[str, list[float]] = {}
    for key, of in several.items():
        real, best = truth[key], min(truth[key].values())
        known = {name: float(of_family[on[0]]) for name, on in of.items()}
        steps = {name: facts.steps[on[0]] for name, on in of.items()}
        unknown = {n: step_on(blind, s.job, unmeasured(s.device))[0] for n, s in steps.items()}
        others = [truth[k] for k in several if family_of(k[1]) != family_of(key[1])]
        late = {name: _lateness(name, others) for name in real}
        for way, said in (
            ("every GPU left out", unknown),
            ("family of networks left out", known),
            ("the fastest for other families", late),
        ):
            lost.setdefault(way, []).append(real[min(said, key=said.__getitem__)] / best - 1)
    means = {f"regret of the GPU chosen, {way}": float(np.mean(of)) for way, of in lost.items()}
    return {"choices between GPUs": float(len(several)), **means}


def _lateness(name: str, truths: Sequence[Mapping[str, float]]) -> float:
    """Return by how much a GPU is slower than the fastest in the mean, where it was measured."""
    seen = [of[name] / min(of.values()) for of in truths if name in of]
    return float(np.mean(seen)) if seen else math.inf


# Simpler rules, each with the row's GPU left out of the rows here.


def _roofline_s(rows: Questions) -> Floats:
    d = columns(rows.facts.own)
    larger = np.maximum(d.flop / d.peak[d.row], d.bytes / d.bandwidth[d.row])
    return np.asarray(np.bincount(d.row, larger, d.log_s.size), float)


def _elsewhere(rows: Questions) -> Sequence[np.ndarray]:
    names = np.array([s.device.name for s in rows.facts.steps])
    return [np.flatnonzero(names != name) for name in names]


def _one_constant(rows: Questions, _answered: np.ndarray) -> Floats:
    """Take the roofline times the median ratio of the other GPUs' rows."""
    bare = np.log(_roofline_s(rows))
    error = np.log(rows.truth) - bare
    return np.array([math.exp(bare[i] + np.median(error[o])) for i, o in _rows(rows)])


def _rows(rows: Questions) -> list[tuple[int, np.ndarray]]:
    return list(enumerate(_elsewhere(rows)))


def _place(rows: Questions) -> Floats:
    """Return what tells rows apart: the step's make-up, and the rates of the device."""
    facts: _Facts = rows.facts
    d = columns(facts.own)
    half = d.is_half[:, None].astype(float)
    made = np.array([job_features(w) for w in facts.works])
    batch = np.log([s.batch for s in facts.steps])[:, None]
    return np.asarray(np.c_[made, batch, d.log_rates, half], float)


def _nearest(rows: Questions, _answered: np.ndarray) -> Floats:
    """Take the roofline times the mean ratio of the nearest rows on other GPUs."""
    bare = np.log(_roofline_s(rows))
    error, place = np.log(rows.truth) - bare, _place(rows)
    place = place / np.maximum(place.std(axis=0), 1e-9)
    found = []
    for i, others in _rows(rows):
        far = np.sum(np.square(place[others] - place[i]), axis=1)
        near = others[np.argsort(far, kind="stable")[:NEIGHBOURS]]
        found.append(math.exp(bare[i] + error[near].mean()))
    return np.array(found)


_RULES: Final[Mapping[str, Rule]] = {
    "one constant times roofline": _one_constant,
    f"roofline and {NEIGHBOURS} nearest": _nearest,
}

RECORDED: Final = Protocol(
    name="recorded",
    description="steps of scripts recorded on a processor, each GPU left out",
    senses={
        "*upper over lower end*": "lower",
        "*the fastest for other families": "neutral",
        "choices between GPUs": "more",
        "rows in fp64": "more",
        "rows that were rehearsed": "more",
        "rows on lent GPUs": "more",
        "rehearsed over recorded*": "lower",
    },
    rows=read_recorded,
    answer=_recorded_answers,
    seen=(
        "the equation, its classes of operators and the shapes of the process",
        "what a call takes on the suites' hosts, and how hosts differ: fitted to all of them",
    ),
    fitted_on=("what a call takes on the suites' hosts, and how hosts differ",),
    blind=Refit(
        hidden=lambda rows: [of_devices(s.device) for s in rows.facts.steps],
        ask=_ask_blind,
        still_seen=(BY_HAND, "how much hosts differ: fitted to all of them"),
    ),
    baselines=_RULES,
    notes=(
        "channels last is not asked: no flag says it",
        "fp64: besides, since nothing was fitted to it; its rates are those of the units",
        "torchvision's steps are asked without their update, which the suite does not time",
        "hosts are unknown: each file is another machine",
        "the suites ran PyTorch 1.x, whose zero_grad writes zeros: so do the scripts asked",
        "lent GPUs: scripts of our own on a machine of today; nothing is fitted to them",
    ),
)
