"""Work that products with quantised frozen weights take besides the products themselves.

| bits | what runs             | forward, and forward repeated   | backward                   |
|------|-----------------------|---------------------------------|----------------------------|
| 4    | NF4 of QLoRA          | every weight is decoded and     | every weight is decoded    |
|      |                       | written out in 16 bits          | and written out in 16 bits |
| 8    | LLM.int8 of           | inputs are quantised and their  | every weight is written    |
|      | ``load_in_8bit``      | outliers split off; sums in 32  | out in 16 bits, and scaled |
|      |                       | bits are scaled, and the        | by a second pass           |
|      |                       | outliers' product added         |                            |

Writing weights out costs the same at every batch, so that it matters less the more tokens a
product has. What LLM.int8 does to inputs and outputs grows with the tokens, as the product does.

Sources: T. Dettmers et al., "QLoRA", NeurIPS 2023, equations 5 and 6; T. Dettmers et al.,
"LLM.int8()", NeurIPS 2022, figure 2 and equations 5 to 8; the passes over weights are counted in
bitsandbytes at 012c6606, which also quantises gradients that nobody reads: with what is moved
forward they are in ``element_bytes``. ``advisor.lab.experiments.quantised`` fits the numbers on
``datasets/measurements/quantised``. Cards before Turing have no units for 8 bits and convert the
weights in both passes: nothing of them was measured, and their interval is wider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightKernel:
    """What weights of some bits add to a product; every field is 0 where nothing is added."""

    decoded_flop: float = 0.0  # elementwise, wherever weights are written out [flop/parameter]
    # read and written in a forward and in a backward pass [bytes/parameter]
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    # moved forward for every element of a product's input and output [bytes]
    element_bytes: float = 0.0
    # forward_calls, backward_calls: kernels that are started besides the product's own
    forward_calls: float = 0.0
    backward_calls: float = 0.0
    # of what all of that does to a step: one deviation of ln(error), on the architectures where it
    # was measured; twice that elsewhere
    log_sd: float = 0.0
    measured_on: frozenset[str] = frozenset()

    def log_sd_on(self, architecture: str) -> float:
        """Return what the kernel adds to the deviation of ln(step) on chips of a family."""
        return self.log_sd * (1.0 if architecture in self.measured_on else 2.0)


# Bits of a frozen weight -> the kernel.
#
# Calls: a product of 32 rows took 37.4 us on an A100 in 16 bits, 134.4 with NF4, 240.0 with
# LLM.int8, all of it the host's (bitsandbytes, issue 605). Backward LLM.int8 converts, scales the
# scales and scales: 1 + 2 bytes, then 2 + 2.
KERNELS: Final[Mapping[int, WeightKernel]] = {
    16: WeightKernel(),
    8: WeightKernel(
        backward_bytes=7.0, element_bytes=88.5, forward_calls=5.4, backward_calls=3.0,
        log_sd=0.2, measured_on=frozenset({"Ampere"}),
    ),
    4: WeightKernel(
        decoded_flop=31.6, forward_bytes=2.5, backward_bytes=2.5, forward_calls=2.6,
        backward_calls=2.6, log_sd=0.1,
        measured_on=frozenset({"Turing", "Ampere", "Ada", "Hopper"}),
    ),
}  # fmt: skip
