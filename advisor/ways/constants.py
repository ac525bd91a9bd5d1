"""The fitted constants that an estimate needs, read once from ``trained_models/``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from advisor.machines import devices
from advisor.machines.residuals import residual_parameters
from advisor.planners.links.data_parallel import ScalingParameters
from advisor.planners.memory.training_memory import MemoryParameters
from advisor.planners.step.calibration import CalibrationParameters
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.residual import ResidualParameters
from advisor.planners.stragglers.spread import RankSpread, per_doubling
from advisor.ways import parameters
from advisor.ways.layout_model import LayoutModel, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Parameter records of the planners."""

    device: DeviceParameters
    residual: ResidualParameters
    calibration: CalibrationParameters
    scaling: ScalingParameters
    memory: MemoryParameters
    layout: LayoutModel

    def with_spread(self, spread: RankSpread | None) -> Constants:
        """Return the constants of a job whose ranks were seen: the one place of stragglers.

        The laws of other jobs' clusters take a spread by their own constants: a deviation over
        workers, or a slowdown by doubling of the nodes.
        """
        if spread is None:
            return self
        sd = spread.with_prior(self.scaling.straggler_sd_fraction)
        parameters = replace(self.layout.parameters, straggler=per_doubling(sd))
        return replace(
            self,
            scaling=replace(self.scaling, straggler_sd_fraction=sd),
            layout=replace(self.layout, parameters=parameters),
        )


@cache
def constants() -> Constants:
    """Read the shipped constants.

    Raises
    ------
    ModelError
        If one of them cannot be read.
    """
    return Constants(
        device=devices.device_parameters(),
        residual=residual_parameters(),
        calibration=devices.calibration_parameters(),
        scaling=parameters.scaling(),
        memory=parameters.memory(),
        layout=load(),
    )
