"""What a search of a described transformer sees, by the constants that a problem starts from."""

from __future__ import annotations

from advisor.planners.core.arrays import Machines
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.problem import Found, LayoutProblem, SearchSpace
from advisor.planners.layouts.search import check, nothing_fits

EVERYTHING = SearchSpace()


def search(
    transformer: Transformer, machines: Machines, nodes: int, batch: int,
    space: SearchSpace | None = None,
) -> Found:  # fmt: skip
    """Return what a search sees, by the constants that a problem starts from."""
    problem, space = LayoutProblem(transformer=transformer, machines=machines), space or EVERYTHING
    devices = nodes * int(machines.devices_per_node)
    check(problem, devices, batch, space)
    found = problem.search(devices, batch, space)
    if found.best is None:
        raise nothing_fits(problem, found, devices, batch, space)
    return found
