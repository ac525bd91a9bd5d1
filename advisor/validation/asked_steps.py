"""Measured steps of described models on one device, asked as a user asks.

A transformer is answered by the layout problem that every verb searches, in the layout that was
measured (one device, the measured micro-batch); any other model by ``Predictor.step_columns`` at
the measured batch, which is accumulated where the product says that it does not fit at once.
Where a suite leaves the update out, the answer's part for it is left out too. A device that is
left out keeps its specifications only: no sustained rate of it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from advisor.catalogue import Accelerator
from advisor.jobs.described import described_job
from advisor.machines.fleet import lone_fleet
from advisor.machines.parts import inferred_flop_per_s
from advisor.planners.core.nouns import Layout
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import unmeasured
from advisor.predict import Predictor
from advisor.train.measured_step import MeasuredStep
from advisor.ways.model_parallel import on_machine

SHAPES: Final = "transformer shapes"
OPERATORS: Final = "operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the product says of one measured step.

    Attributes
    ----------
    step_s, log_sd : float
        Step time [s] and one standard deviation of the error of its logarithm; nan where the
        product has no answer (it does not fit).
    law : str
        Which law times the operators (``ways.laws``).
    operators_s : float
        What the law of the operators says, whichever answers [s].
    """

    step_s: float
    log_sd: float
    law: str
    operators_s: float


def answer(asking: Predictor, step: MeasuredStep, *, is_left_out: bool) -> Answer:
    """Return the product's answer for one measured step.

    Parameters
    ----------
    asking : Predictor
        With the constants to ask with.
    step : MeasuredStep
    is_left_out : bool
        Nothing of the device may be known but its specifications.
    """
    device = unmeasured(step.device) if is_left_out else step.device
    known = asking.catalogue.accelerators
    fleet = lone_fleet(device, 1, known.get(device.name))
    job = described_job(step.work, name=step.model)
    by_operators = step_time(
        step.work, [device], [float(step.work.micro_batch)], asking.constants.device
    )
    update_s = float(by_operators.optimizer_s[0]) if step.has_update else 0.0
    operators_s = float(by_operators.micro_batch_s[0, 0]) + update_s
    if step.work.transformer is None:
        columns = asking.step_columns(job, np.array([0]), np.array([1]), fleet=fleet)
        return Answer(
            step_s=float(columns.step_s[0]),
            log_sd=float(columns.log_sd[0]),
            law=OPERATORS,
            operators_s=operators_s,
        )
    case = asking.case(job, fleet=fleet)
    if is_left_out:
        case = replace(case, accelerators=_unmeasured_rows(known))
    on = on_machine(case, 0)
    planned = on.problem.evaluate(Layout(micro_batch=step.work.micro_batch))
    untimed_s = 0.0 if step.has_update else planned.parts_s["optimizer_s"]
    return Answer(
        step_s=planned.step_s - untimed_s,
        log_sd=on.log_sd,
        law=SHAPES if on.problem.layer_table is None else OPERATORS,
        operators_s=operators_s,
    )


def _unmeasured_rows(rows: Mapping[str, Accelerator]) -> dict[str, Accelerator]:
    """Return accelerators whose rates are what their family's measured cards let expect."""
    return {
        name: replace(row, sustained_bf16_flop_per_s=inferred_flop_per_s(row))
        for name, row in rows.items()
    }
