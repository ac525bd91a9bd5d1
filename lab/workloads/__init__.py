"""A zoo of small, real training jobs that learn on data every installation has.

Twelve families in three files: what the model is, which widths and batches make it a job, what it
learns on. All but ``recommender`` learn on real data: scikit-learn's digits and sample
photographs, and the source text of Python's standard library; the recommender's ratings are
synthetic and say so. Nothing is downloaded.

A workload at one width and one batch is a *job*; the workload's name is the group that
"leave one job out" leaves out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

# Name -> its file here, in the order that the collection's plan goes by.
WORKLOADS: Final = {
    "mlp": "relations", "cnn": "images", "resnet": "images", "convnext": "images",
    "vit": "images", "unet": "images", "autoencoder": "images", "lstm": "text", "gru": "text",
    "transformer": "text", "gnn": "relations", "recommender": "relations",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    description: str
    data: str
    is_synthetic: bool = False
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    # ``width -> module``, freshly initialised from torch's global seed
    build: Callable[[int], torch.nn.Module]
    # ``() -> map-style dataset``, the same one each time
    samples: Callable[[], torch.utils.data.Dataset[Any]]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]  # ``(module, batch) -> scalar tensor``
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def load(name: str) -> Workload:
    if name not in WORKLOADS:
        raise ValueError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    module = importlib.import_module(f"{__name__}.{WORKLOADS[name]}")
    found: tuple[Workload, ...] = module.WORKLOADS
    return next(one for one in found if one.name == name)
