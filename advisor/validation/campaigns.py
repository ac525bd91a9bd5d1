"""Protocol ``campaigns``: GPU-hours of published training runs, each family of runs left out.

Every run is put to the estimate as it was published: described, on the machines that it had, in
the best layout that the search finds there (``advisor.train.campaign_question``). Checkpoints and
hardware failures come with the estimate; what a whole run adds besides, and its spread, come from
the law fitted on the other families (``advisor.train.campaigns``), form and spread included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.domain import QUANTILES
from advisor.lab.data import CAMPAIGNS
from advisor.predict import Predictor
from advisor.records.campaigns import read_campaigns, read_packaged
from advisor.train.campaign_rows import COVERAGE, CampaignAnswer, answers
from advisor.train.campaigns import (
    Bools,
    CampaignColumns,
    Floats,
    beyond_rate,
    columns,
    fit,
)
from advisor.validation.scores import THE_PRODUCT, Blind, Group, Scores, Validation, score
from advisor.ways.constants import constants

_Z: Final = QUANTILES[COVERAGE]
# A family whose own steps are among those that the layout model is fitted on: (family, table).
OWN_TABLE: Final = ("Megatron", "megatron_sc21")
SEEN: Final = (
    "the law's two ideas (size, age of software) and the root law of its spread; which of them "
    "are used is nested",
    "the year that software counts from, the noise of a row and the priors' width",
    "the layout model behind a step: fitted on steps measured by some of the same "
    "organisations (Megatron)",
)


def run(data: Path) -> Validation:
    """Score the published runs under ``data``; what they are predicted from are they themselves.

    Raises
    ------
    UsageError
        If the table is not there.
    ModelError
        If a number in it is none, or no run can be asked about.
    """
    predictor = Predictor()
    found, left_out = answers(
        read_campaigns(CAMPAIGNS.place("runs", data), _families()), predictor
    )
    return _validation(found, left_out, columns(found))


def blind(data: Path, shipped: Validation) -> Blind:
    """Score them, Megatron's with a layout model that never saw the steps of the same paper.

    Raises
    ------
    UsageError, ModelError
        As ``run``.
    """
    predictor = Predictor()
    published = read_campaigns(CAMPAIGNS.place("runs", data), _families())
    found, _ = answers(published, predictor)
    law = constants().layout
    known = replace(constants(), layout=replace(law, parameters=law.without(OWN_TABLE[1])))
    asking = Predictor(predictor.catalogue, constants=known, learned=None)
    own, _ = answers([c for c in published if c.family == OWN_TABLE[0]], asking)
    blinded = {a.question.campaign.campaign: a for a in own}
    found = [blinded.get(a.question.campaign.campaign, a) for a in found]
    rows = columns(found)
    value, log_sd = predict(rows, rows)
    return Blind(
        overall=_scored(rows, value, log_sd, np.ones(len(rows), bool)),
        groups=[
            Group(group=name, scores=_scored(rows, value, log_sd, mask))
            for name, mask in _groups(found)
        ],
        changed=(f"{OWN_TABLE[0]}'s steps by constants fitted without {OWN_TABLE[1]}",),
        still_seen=SEEN[:2],
        kept=(
            "Megatron's steps of other papers: they are in three more tables, and a fit without "
            "all four takes minutes (advisor train layout-model)",
        ),
    )


def _scored(rows: CampaignColumns, value: Floats, log_sd: Floats, mask: Bools) -> Scores:
    return score(
        np.exp(value[mask]), rows.published_h[mask],
        low=np.exp((value - _Z * log_sd)[mask]), high=np.exp((value + _Z * log_sd)[mask]),
    )  # fmt: skip


def run_table(path: Path, _data: Path | None = None) -> Validation:
    """Score another table of the same columns with laws that never saw its families.

    The laws are fitted on the packaged runs; errors are those of ``run``.
    """
    predictor = Predictor()
    found, left_out = answers(read_campaigns(path, _families()), predictor)
    columns(found)  # refuses an empty table before the packaged one is estimated
    known, _ = answers(read_packaged(), predictor)
    return _validation(found, left_out, columns(known))


def _families() -> dict[str, str]:
    return {c.campaign: c.family for c in read_packaged()}


def predict(rows: CampaignColumns, known: CampaignColumns) -> tuple[Floats, Floats]:
    """Return ln(device-hours) and their deviation, each family by laws that never saw it."""
    value, log_sd = np.log(rows.estimated_h), np.zeros(len(rows))
    for family in np.unique(rows.family):
        own = rows.family == family
        law = fit(known.select(known.family != family))
        left_out = rows.select(own)
        value[own] += left_out.log_factor(law)
        log_sd[own] = left_out.log_sd(law)
    return value, log_sd


def _validation(
    found: Sequence[CampaignAnswer], left_out: dict[str, int], known: CampaignColumns
) -> Validation:
    rows = columns(found)
    value, log_sd = predict(rows, known)

    everything = np.ones(len(rows), bool)
    return Validation(
        protocol="campaigns",
        description="device-hours of published training runs, each family left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=_scored(rows, value, log_sd, everything),
        groups=[
            Group(group=name, scores=_scored(rows, value, log_sd, mask))
            for name, mask in _groups(found)
        ],
        baselines=_baselines(found, rows, known),
        figures=_figures(found, rows, known, value, log_sd),
        notes=_notes(found, left_out),
    )


def _groups(found: Sequence[CampaignAnswer]) -> Iterator[tuple[str, Bools]]:
    """Yield the families, the accelerators, and what kind of hours were published."""
    runs = [a.question.campaign for a in found]
    kinds = ["whole runs" if c.is_whole_run else "steps alone" for c in runs]
    accelerators = [f"on {c.accelerator}" for c in runs]
    for labels in ([c.family for c in runs], accelerators, kinds):
        for label in dict.fromkeys(labels):
            yield label, np.array([one == label for one in labels])


def _baselines(
    found: Sequence[CampaignAnswer], rows: CampaignColumns, known: CampaignColumns
) -> dict[str, Scores]:
    """Score simpler rules on the same rows; what they fit, they fit on the other families."""
    ideal_h = np.array([a.ideal_device_h for a in found])
    step_low = rows.estimated_h * np.exp(-_Z * rows.step_log_sd)
    step_high = rows.estimated_h * np.exp(_Z * rows.step_log_sd)
    baselines = {
        "steps and goodput, no whole-run term": score(
            rows.estimated_h, rows.published_h, low=step_low, high=step_high
        )
    }
    families = np.unique(rows.family)
    constant, same_factor = np.zeros(len(rows)), np.zeros(len(rows))
    for family in families:
        own, others = rows.family == family, known.family != family
        same_factor[own] = np.median(known.target[others])
        if families.size > 1:
            constant[own] = np.median(np.log(rows.published_h / ideal_h)[~own])
    baselines["the same factor for every run"] = score(
        rows.estimated_h * np.exp(same_factor), rows.published_h
    )
    if families.size > 1:
        baselines["6 N D at the others' MFU"] = score(ideal_h * np.exp(constant), rows.published_h)
    return baselines


def _figures(
    found: Sequence[CampaignAnswer], rows: CampaignColumns, known: CampaignColumns,
    value: Floats, log_sd: Floats,
) -> dict[str, float]:  # fmt: skip
    ratio = np.exp(value) / rows.published_h
    is_stated = np.array(["accelerators" not in a.question.assumed for a in found])
    law = fit(known)
    figures = {
        "mean ratio": float(np.mean(ratio)),
        "standard deviation of ln ratio": float(np.std(np.log(ratio))),
        "median half-width of 90 % intervals, log": float(np.median(_Z * log_sd)),
        "median half-width of the step's alone, log": float(np.median(_Z * rows.step_log_sd)),
        "law: growth an e-fold of device-hours": law.growth,
        "law: growth a year of older software": law.per_year,
        "law: log-sd a root of an e-fold": law.sd_per_root,
        "law: log-sd a root of an e-fold, step measured": law.sd_per_root_measured,
    }
    size, beyond = beyond_rate(rows)
    if size.size:
        figures["hours / hours at the published rate of steps, geometric mean"] = float(
            np.exp(np.mean(beyond))
        )
        figures["the same by the law"] = float(np.exp(np.mean(law.growth * size)))
    if is_stated.any():
        figures["median ratio where the accelerators are stated"] = float(
            np.median(ratio[is_stated])
        )
    return figures


def _notes(found: Sequence[CampaignAnswer], left_out: dict[str, int]) -> tuple[str, ...]:
    assumed = Counter(what for a in found for what in a.question.assumed)
    words = {
        "accelerators": "number of accelerators guessed (as many as end within a month)",
        "batch": "batch guessed from the model's size",
        "rounded batch": "batch rounded to one that the accelerators share",
        "sequence": "sequence cut at 8,192",
        "network": "network not stated: that of the accelerator's usual machine",
    }
    notes = [f"{count} rows: {words[what]}" for what, count in assumed.items()]
    notes += [f"{count} rows left out: {reason}" for reason, count in left_out.items()]
    return (
        "median ratio: ours / published; layouts are the best that the search finds, not the "
        "published ones; software of 2022 and before is taken without flash attention",
        "steps alone: hours published as step time x steps, or without downtime; they get no "
        "whole-run term, only that of their software's age",
        *notes,
    )
