"""MLPerf's Xeon submissions as described jobs: how wrong the step-time equation is on processors.

Nothing is fitted on them (they are six numbers of three generations, ResNet-50 and BERT, by one
organisation); the spread of their errors is the width that an estimate on a processor gets. The
same jobs on GPUs err by as much in the other direction (BERT) or in the same one (ResNet-50), so
that no correction carries over from processor to GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.lab.data import MLPERF
from advisor.machines.processors import cpu_device
from advisor.planners.core.nouns import Precision, TrainingSetup, Transformer, Work
from advisor.planners.core.units import GIB
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.device import step_time
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.train.described_images import NETWORKS

# MLPerf's BERT pre-trains the large model on 512 tokens.
_BERT: Final = Transformer(
    layers=24, hidden=1024, heads=16, sequence=512, vocabulary=30522, is_causal=False
)
# System -> (processor, sockets and cores of a node, nodes, precision), as the entries describe it.
SYSTEMS: Final[dict[str, tuple[str, int, int, int, Precision]]] = {
    "skx_8180_2s_1x": ("INTEL XEON PLATINUM 8180", 2, 28, 1, "fp32"),
    "1-node-8s-8380H-tensorflow": ("INTEL XEON PLATINUM 8380H", 8, 28, 1, "bf16"),
    "2-nodes-16s-8376H-tensorflow": ("INTEL XEON PLATINUM 8376H", 8, 28, 2, "bf16"),
    "8-nodes-SPR-pytorch": ("INTEL XEON PLATINUM 8480+", 2, 56, 8, "bf16"),
    "16-nodes-SPR-pytorch": ("INTEL XEON PLATINUM 8480+", 2, 56, 16, "bf16"),
}


def processor_rows(data: Path) -> pd.DataFrame:
    """Return one row a Xeon system and benchmark; none without the table.

    A system submitted again in a later round counts once. Columns: system, benchmark,
    samples_per_s, global_batch.
    """
    if not MLPERF.has("entries", data):
        return pd.DataFrame()
    frame = MLPERF.read("entries", data)
    frame = frame[
        frame["system"].isin(list(SYSTEMS))
        & frame["benchmark"].isin(["resnet", "bert"])
        & (frame["samples_per_s"] > 0)
    ]
    cells = frame.groupby(["system", "benchmark"])[["samples_per_s", "global_batch"]].median()
    return cells.reset_index()


def processor_residuals(cells: pd.DataFrame, parameters: DeviceParameters) -> NDArray[np.float64]:
    """Return ln(predicted / measured) of every row; reductions between nodes count as hidden."""
    return np.array(
        [
            _residual(
                str(cell["system"]), str(cell["benchmark"]), cell["samples_per_s"],
                cell["global_batch"], parameters,
            )
            for cell in cells.to_dict("records")
        ]
    )  # fmt: skip


def processor_log_sd(residuals: NDArray[np.float64], known_log_sd: float) -> float | None:
    """Return what a processor adds to an error, in squares; None where nothing was measured.

    Parameters
    ----------
    known_log_sd : float
        What a GPU's estimate has already, its rate not measured.
    """
    if not residuals.size:
        return None
    return float(np.sqrt(max(float(np.mean(residuals**2)) - known_log_sd**2, 0.0)))


def _residual(
    system: str, benchmark: str, samples_per_s: float, batch: float, parameters: DeviceParameters
) -> float:
    model, sockets, cores, nodes, precision = SYSTEMS[system]
    device = cpu_device(
        name=system, vcpus=2 * sockets * cores, memory_bytes=512 * GIB, cpu_model=model
    )
    work = _work(benchmark, round(batch / nodes), precision)
    columns = step_time(work, [device], [float(work.micro_batch)], parameters)
    step_s = float(columns.micro_batch_s[0, 0] + columns.optimizer_s[0])
    return float(np.log(step_s * samples_per_s / batch))


def _work(benchmark: str, batch: int, precision: Precision) -> Work:
    if benchmark == "bert":
        return transformer_work(
            _BERT, micro_batch=batch, precision=precision, setup=TrainingSetup(attention="unfused")
        )
    return convolutional_work(
        parse_network(NETWORKS["ResNet50"].format(224)), micro_batch=batch, precision=precision,
        setup=TrainingSetup(optimizer="sgd-momentum"),
    )  # fmt: skip
