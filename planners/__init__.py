"""What a training step takes: on which device, over which links, in which layout.

Complete in itself: imports nothing of ``advisor``, opens no files, knows no prices. Fitted
constants come in as frozen parameter records. One system or concept a file; the symbol table and
source stand in each module's docstring.
"""

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Cluster, Device, Layer, Layout, Link, Node, Operator, Work
from advisor.planners.core.setup import Transformer

__all__ = [
    "Cluster",
    "Device",
    "Layer",
    "Layout",
    "Link",
    "Node",
    "Operator",
    "PlanningError",
    "Transformer",
    "Work",
]
