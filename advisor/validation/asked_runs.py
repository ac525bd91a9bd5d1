"""Measured runs asked as a user asks them, with the layout fixed: ``Predictor.step_columns``.

Nothing is put in beside the question: model, setup, machines and layout are what flags say
(``train.asked_rows``). A run that does not fit by the product's memory rule, or whose layout no
released framework accepts, has no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.jobs.described import described_job
from advisor.machines.fleet import Fleet, one_type
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.step.describe import transformer_work
from advisor.predict import Predictor
from advisor.train.asked_rows import AskedRun
from advisor.train.layout_rows import known_part
from advisor.validation.asked_layouts import predictor
from advisor.validation.scores import Scores, score
from advisor.ways.columns import STATUSES

# Half-width of a 90 % interval in standard deviations.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the product says of runs; nan where it has no answer.

    Attributes
    ----------
    step_s, low_s, high_s : array
        Value and 90 % interval. [s]
    memory_bytes : array
    status : array of str
    """

    step_s: Floats
    low_s: Floats
    high_s: Floats
    memory_bytes: Floats
    status: NDArray[np.str_]

    @property
    def is_answered(self) -> NDArray[np.bool_]:
        """Where there is an answer."""
        return np.isfinite(self.step_s)


def ask(runs: Sequence[AskedRun], parameters: LayoutParameters) -> Answers:
    """Return the product's answers with other constants of the layout model than the shipped."""
    known = predictor().constants
    layout = replace(known.layout, parameters=parameters)
    asking = Predictor(
        predictor().catalogue, constants=replace(known, layout=layout), learned=None
    )
    found = np.array([_answer(asking, run) for run in runs])
    step_s, log_sd = found[:, 0], found[:, 1]
    return Answers(
        step_s=step_s,
        low_s=step_s * np.exp(-REACH_90 * log_sd),
        high_s=step_s * np.exp(REACH_90 * log_sd),
        memory_bytes=found[:, 2],
        status=np.array([STATUSES[int(code)] for code in found[:, 3]]),
    )


def scored(answers: Answers, runs: Sequence[AskedRun], rows: NDArray[np.bool_]) -> Scores:
    """Score the answered runs among some rows."""
    rows = rows & answers.is_answered
    measured = np.array([run.measured_s for run in runs])
    return score(
        answers.step_s[rows], measured[rows], low=answers.low_s[rows], high=answers.high_s[rows]
    )


def _answer(asking: Predictor, run: AskedRun) -> tuple[float, float, float, int]:
    work = transformer_work(
        run.transformer, micro_batch=1, precision=run.precision, setup=run.setup
    )
    columns = asking.step_columns(
        described_job(work, name=run.row_id, global_batch=run.layout.global_batch),
        np.array([0]),
        np.array([run.layout.devices // run.per_node]),
        fleet=_fleet(run),
        space=_space(run),
    )
    return (
        float(columns.step_s[0]),
        float(columns.log_sd[0]),
        float(columns.memory_bytes[0]),
        int(columns.status[0]),
    )


def _space(run: AskedRun) -> SearchSpace:
    """Return the space that holds one layout."""
    layout = run.layout
    return SearchSpace(
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        ep=layout.ep,
        micro_batch=layout.micro_batch,
        schedules=(layout.schedule,),
        zero_stages=(layout.zero_stage,),
        may_shard_in_nodes=False,
        recomputes=(layout.recompute,),
        offloads=(),
    )


def _fleet(run: AskedRun) -> Fleet:
    found = known_part(run.gpu)
    assert found is not None
    part = found[0]
    return one_type(
        part.device,
        per_node=run.per_node,
        intra_bytes_per_s=part.link_bytes_per_s,
        has_own_links=not part.link_name.startswith("pcie"),
        network_bytes_per_s=run.network_bytes_per_s,
        is_rdma=True,
        vcpus=np.inf,
        core_speed=None,
        host_memory_bytes=np.inf,
    )
