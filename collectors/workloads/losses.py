"""The losses that several workloads share: ``(module, batch) -> scalar tensor``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def class_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of the samples' classes; the batch is ``(samples, labels)``."""
    samples, labels = batch
    return functional.cross_entropy(model(samples), labels)


def next_character_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of the next character; the batch is of ``data.Text``."""
    now, later = batch
    return functional.cross_entropy(model(now).flatten(0, 1), later.flatten())
