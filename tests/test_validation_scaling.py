"""Protocols scaling and memory on the real tables, and without any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor import data
from advisor.errors import ModelError
from advisor.lab import score
from advisor.lab.data import MEMORY
from advisor.lab.score import stored
from advisor.lab.score.memory import kernel_ratios


@pytest.mark.parametrize("protocol", ["scaling", "memory", "failures"])
def test_missing_measurements_are_one_error(tmp_path: Path, protocol: str) -> None:
    with pytest.raises(ModelError):
        score.run(protocol, tmp_path)


def test_memory_is_predicted_better_than_by_the_formula() -> None:
    """As stored: ``make accuracy-quick`` runs the protocol and holds what is stored to it."""
    record = stored.read("memory").record
    figures, simple = record["figures"], record["baselines"]["Megatron's formula"]
    assert figures["pre-training, mean of sources, MAPE"] < 0.12 < simple["mape_fraction"]
    for rule, sign in (("at ", -1), ("fits with ", 1)):
        found = [
            v for k, v in figures.items() if k.startswith(rule) and k.endswith("failures found")
        ]
        assert len(found) > 3
        # A higher threshold never finds more, a surer verdict never less.
        assert np.all(sign * np.diff(found) >= 0)


def test_bytes_of_single_operations_are_those_of_their_closed_forms() -> None:
    """What losses, norms and gated blocks hold, as PyTorch counted it (Liger-Kernel's tables)."""
    told = kernel_ratios(MEMORY.read("kernels", data.root("datasets")))
    assert len(told) >= 12
    assert all(abs(ratio - 1) < 0.06 for ratio in told.values()), told
