"""Published training runs and what the estimate says of them, goodput included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from advisor.machines.fleet import LATENCY_S
from advisor.machines.own_nodes import own_fleet
from advisor.planners.core.nouns import Layout
from advisor.planners.core.transformer import transformer_parameters
from advisor.planners.core.units import HOUR_S
from advisor.planners.goodput.campaign import STEPS_ALONE
from advisor.predict import STATUSES, Predictor
from advisor.predict.completion import on_demand
from advisor.records.campaigns import Campaign, without_repetitions
from advisor.train.campaign_question import CampaignQuestion, UnusableError, ask

COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignAnswer:
    """A published run and what the estimate says of it in its best layout.

    All before the whole-run term.
    """

    question: CampaignQuestion
    steps_h: float  # the steps alone [h]
    # with checkpoints and hardware failures where the published hours are of a run as it was; the
    # steps alone elsewhere [h]
    hours: float
    log_sd: float  # of the logarithm of the step time
    layout: Layout

    @property
    def device_h(self) -> float:
        """Hours of all devices together, goodput included [h]."""
        return self.hours * self.question.machines.devices

    @property
    def steps_device_h(self) -> float:
        """Hours of all devices together in steps [h]."""
        return self.steps_h * self.question.machines.devices

    @property
    def published_rate_device_h(self) -> float | None:
        """Hours of all devices at the published rate of the steps; None without one [h]."""
        c = self.question.campaign
        if c.tokens and c.tokens_per_s_per_device:
            return c.tokens / c.tokens_per_s_per_device / HOUR_S
        return self.ideal_device_h / c.mfu_fraction if c.mfu_fraction else None

    @property
    def ideal_device_h(self) -> float:
        """Hours of all devices for 6 N D at the datasheet's dense 16-bit rate [h]."""
        part = self.question.machines.part
        peak = part.device.bf16_flop_per_s or part.device.fp16_flop_per_s or part.flop_per_s
        c = self.question.campaign
        size = c.parameters or transformer_parameters(self.question.transformer)
        return 6 * size * (c.tokens or 0.0) / peak / HOUR_S


def answers(
    campaigns: Sequence[Campaign], predictor: Predictor
) -> tuple[list[CampaignAnswer], dict[str, int]]:
    """Return what the estimate says of every run that it can be asked about."""
    found, left_out = [], {}
    kept = without_repetitions(campaigns)
    if len(kept) < len(campaigns):
        left_out["stated once more"] = len(campaigns) - len(kept)
    for campaign in kept:
        try:
            found.append(answer(ask(campaign, predictor.catalogue), predictor))
        except UnusableError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
    return found, left_out


def answer(question: CampaignQuestion, predictor: Predictor) -> CampaignAnswer:
    """Ask the estimate: the only place that does.

    Raises UnusableError if it has no answer; the message is its status.
    """
    job, group = question.job, question.machines
    fleet, row = own_fleet(
        group, predictor.catalogue, predictor.fleet, per_node=group.node.devices
    )
    fleet = replace(
        fleet,
        is_rdma=np.full_like(fleet.is_rdma, True),
        network_latency_s=np.full_like(fleet.network_latency_s, LATENCY_S["rdma"]),
    )
    columns = predictor.step_columns(job, np.array([row]), np.array([group.count]), fleet=fleet)
    if columns.status[0]:
        raise UnusableError(STATUSES[int(columns.status[0])].replace("_", " "))
    steps_h = float(columns.step_s[0]) * job.total_steps / HOUR_S
    whole = on_demand(job, columns, COVERAGE, law=STEPS_ALONE).finish_h[0, 1]
    return CampaignAnswer(
        question=question,
        steps_h=steps_h,
        hours=float(whole) if question.campaign.is_whole_run else steps_h,
        log_sd=float(columns.log_sd[0]),
        layout=columns.layout(0),
    )
