"""What ships, scored as it ships: folders of constants on the rows that come with the package.

The other protocols leave groups out, and so fit the constants again: a number that changed in
``trained_models`` moves few of them. Here nothing is left out and nothing is fitted. These are no
errors to expect on new rows, and no table shows them; they are what the gate holds still. Each
takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.estimate import case, completion
from advisor.estimate.case import constants
from advisor.estimate.predictor import Predictor
from advisor.lab.data import COLLECTIVES
from advisor.lab.fit.described import known_steps
from advisor.lab.fit.described_columns import MeasuredStep
from advisor.lab.fit.device import equation_s
from advisor.lab.fit.scaling import (
    KNOWN_CLUSTERS,
    NODE_DEVICES,
    NVLINK_BYTES_PER_S,
    TABLE_NETWORK_BYTES_PER_S,
    one_device_s,
    read_clusters,
    read_rings,
    uncalibrated,
)
from advisor.lab.score import asked, described
from advisor.lab.score.harness import Answers, Floats, Protocol, Questions, by
from advisor.lab.score.layouts import LAYOUT_STEPS, LayoutFacts, read_layouts
from advisor.lab.score.memory import PROTOCOL as MEMORY_READ
from advisor.lab.score.memory import memory_answers, read_rows
from advisor.lab.score.runs import CAMPAIGN, Campaigns, band
from advisor.planners.links.collectives import ring_all_reduce_s

EVERY: Final = 5  # of so many described steps one is also asked of the product, residuals included
_AS_SHIPPED: Final = "constants as they ship, fitted on these rows"


def _questions(labels: Sequence[str], truth: Any, facts: Any, of: str) -> Questions:
    return Questions(
        questions=[f"{of}: {label}" for label in labels], truth=np.asarray(truth, float),
        unseen=[""] * len(labels), groups=by(labels), facts=facts,
    )  # fmt: skip


# device_model: the step-time equation on every described and every recorded step


def _read_steps(data: Path) -> Questions:
    steps = known_steps(data)
    labels = [f"{'recorded, ' * bool(s.host)}{s.device.name}" for s in steps]
    return _questions(labels, [s.seconds for s in steps], steps, "seconds of a step")


def _step_answers(rows: Questions) -> Answers:
    steps: list[MeasuredStep] = rows.facts
    shipped = constants().device
    value = np.array([equation_s(s, s.device, shipped) for s in steps])
    asking = Predictor(learned=None)
    picked = [i for i, s in enumerate(steps) if not s.host][::EVERY]
    told = [described.answer(asking, steps[i], is_left_out=False) for i in picked]
    ours = Answers.spread(np.array([t.step_s for t in told]), np.array([t.log_sd for t in told]))
    scores = ours.scores(rows.truth[picked])
    figures = scores.named("the product's answer, ", "rows", "MAPE", "median APE", "coverage")
    figures["the product's answer, half-width"] = scores.width or 0.0
    return Answers.spread(value, np.full(value.size, shipped.log_sd), figures=figures)


DEVICE: Final = Protocol(
    name="shipped/device_model",
    description="steps by the equation, every device known",
    rows=_read_steps,
    answer=_step_answers,
    scores=_AS_SHIPPED,
)


# layout_model, memory, campaign: the rows of their protocols


def _layout_answers(rows: Questions) -> Answers:
    facts: LayoutFacts = rows.facts
    width = np.zeros(rows.truth.size)
    generations = np.asarray(facts.rows.machines.generation)
    for generation in np.unique(generations):
        width[generations == generation] = facts.model.log_half_width(int(generation))
    value = asked.step_s(facts.rows, facts.model.parameters)
    return Answers(value=value, low=value * np.exp(-width), high=value * np.exp(width))


LAYOUT: Final = replace(
    LAYOUT_STEPS, name="shipped/layout_model", scores=_AS_SHIPPED, baselines={},
    rows=lambda data: replace(read_layouts(data), raw=None), answer=_layout_answers,
)  # fmt: skip


def _memory_answers(rows: Questions) -> Answers:
    return memory_answers(rows, constants().memory)


MEMORY: Final = replace(
    MEMORY_READ, name="shipped/memory", scores=_AS_SHIPPED, baselines={}, figures=None,
    rows=lambda data: replace(read_rows(data), raw=None), answer=_memory_answers,
)  # fmt: skip


def _campaign_answers(rows: Questions) -> Answers:
    facts: Campaigns = rows.facts
    law = completion.campaign_law()
    value = np.log(facts.rows.estimated_h) + facts.rows.log_factor(law)
    return band(value, facts.rows.log_sd(law))


WHOLE_RUNS: Final = replace(
    CAMPAIGN, name="shipped/campaign", scores=_AS_SHIPPED, baselines={}, blind=None,
    rows=lambda data: replace(CAMPAIGN.rows(data), raw=None), answer=_campaign_answers,
)  # fmt: skip


# scaling: collectives as measured, and steps on several devices from one device's

_INSIDE, _BETWEEN = "all-reduce inside a node", "ring between nodes"


def _read_scaling(data: Path) -> Questions:
    found: list[tuple[str, Any, Floats, Floats]] = []  # label, measured, predicted, log_sd
    shipped = case.scaling()
    links, table = shipped.collectives, COLLECTIVES.read("all_reduce", data)
    table = table[table.accelerator.isin(list(NVLINK_BYTES_PER_S))]
    inside = table[table.accelerators == NODE_DEVICES]
    ring = ring_all_reduce_s(
        inside.message_bytes.to_numpy(float), NODE_DEVICES,
        inside.accelerator.map(NVLINK_BYTES_PER_S).to_numpy(float),
        links.intra_step_s, efficiency=links.intra_efficiency,
    )  # fmt: skip
    found.append((_INSIDE, inside.all_reduce_s, links.launch_s + ring, 0 * ring))
    rings = read_rings(data)
    between = ring_all_reduce_s(
        rings.size, rings.workers, TABLE_NETWORK_BYTES_PER_S, links.network_step_s,
        efficiency=links.network_efficiency,
    )  # fmt: skip
    found.append((_BETWEEN, np.exp(rings.log_s), between, 0 * between))
    for cluster, runs in read_clusters(data).items():
        for index, size in enumerate(runs.gradient_bytes if cluster in KNOWN_CLUSTERS else ()):
            own = runs.take(runs.measured.placements.application == index)
            alone = one_device_s(own, own.placements)
            if size is None or alone is None:
                continue
            said = uncalibrated(cluster, size, alone, own.placements, shipped)
            name = f"{cluster} {runs.applications[index]}"
            value, log_sd = np.broadcast_arrays(said.step_s, said.log_sd)
            found.append((name, own.step_s, value, log_sd))
    labels = [label for label, measured, _, _ in found for _ in measured]
    truth, value, log_sd = (np.concatenate([one[i] for one in found]) for i in (1, 2, 3))
    rows = _questions(labels, truth, (value, log_sd), "seconds")
    steps = np.array([label not in (_INSIDE, _BETWEEN) for label in labels])
    return replace(rows, counted=steps)  # of collectives no interval is promised


SCALING: Final = Protocol(
    name="shipped/scaling",
    description="collectives, and steps on several devices from one device's",
    rows=_read_scaling,
    answer=lambda rows: Answers.spread(*rows.facts),
    scores=_AS_SHIPPED,
)
