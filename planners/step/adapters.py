"""Work that low-rank adapters and quantised weights add to a transformer layer.

| here          | papers  | meaning                                                            |
|---------------|---------|--------------------------------------------------------------------|
| ``rank``      | r       | of the adapter: y = W x + s B (A x), A of r x inner, B of columns x r |
| ``inner``, ``columns`` | k, d | of the adapted matrix                                       |

Forward, per token: 2 r (k + d) flop, and traffic over x, A x twice and B A x; backward as much for
each of two gradients (of input and of weight). The scaled sum streams over y. A quantised matrix
is read and written out in 16 bits whenever a pass needs it: forward, backward, and once more where
the forward pass is repeated. Sources: E. Hu et al., "LoRA", 2021, section 4.1; T. Dettmers et al.,
"QLoRA", NeurIPS 2023, section 3 (equations 5 and 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from advisor.planners.core.nouns import TrainingSetup
from advisor.planners.core.transformer import Transformer, layer_matrices
from advisor.planners.step.describe_operators import ADAPTER_SUM

# Of a 16-bit number. [bytes]
_ELEMENT_BYTES: Final = 2.0
_PER_EXPERT: Final = frozenset({"up", "down"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWork:
    """What one layer's adapters and quantised weights take; all 0 without.

    Attributes
    ----------
    flop : float
        Of the adapters' products for a token, forward. [flop/token]
    product_bytes : float
        That these products move for a token, forward. [bytes/token]
    sum_bytes : float
        That scaling and adding their outputs moves, forward; as much backward. [bytes/token]
    dequantised_bytes : float
        Read and written for every quantised parameter in every pass. [bytes/parameter]
    """

    flop: float = 0.0
    product_bytes: float = 0.0
    sum_bytes: float = 0.0
    dequantised_bytes: float = 0.0


def adapter_work(setup: TrainingSetup, model: Transformer) -> AdapterWork:
    """Return what adapters add to one layer of the model.

    Examples
    --------
    >>> model = Transformer(layers=1, hidden=1024, heads=8, sequence=128, vocabulary=0)
    >>> setup = TrainingSetup(adapter_rank=8, adapter_targets="query-value")
    >>> adapter_work(setup, model).flop == 2 * 8 * 2 * (1024 + 1024)
    True
    """
    if setup.adapter_rank is None:
        return AdapterWork()
    flop = moved = summed = 0.0
    (forward, _), _ = ADAPTER_SUM
    for matrix in layer_matrices(model):
        if not setup.adapts(matrix.name):
            continue
        count = float(matrix.count)
        if matrix.name in _PER_EXPERT:
            count *= model.experts_per_token / model.experts
        sides = matrix.inner + matrix.columns
        flop += count * 2.0 * setup.adapter_rank * sides
        moved += count * _ELEMENT_BYTES * (sides + 2.0 * setup.adapter_rank)
        summed += count * _ELEMENT_BYTES * forward * matrix.columns
    quantised = setup.base_bits < 16
    return AdapterWork(
        flop=flop,
        product_bytes=moved,
        sum_bytes=summed,
        dequantised_bytes=setup.frozen_bytes("bf16") + _ELEMENT_BYTES if quantised else 0.0,
    )
