"""Which of two laws times a transformer's layers on a device, always the same one for the same.

- The law of the shapes (``planners.step.transformer_step``): products, attention and elementwise
  traffic counted from the model's dimensions, constants fitted on published runs of Megatron,
  DeepSpeed, FSDP and the like. It holds where those were run: NVIDIA's GPUs from Volta on whose
  rate of large products was measured, in 16 bits or less (or TF32).
- The law of the operators (``planners.step.device``): a roofline over every operator of the step,
  with what measured steps say of its errors (``planners.step.residual``). It holds everywhere
  else: processors, other makers' accelerators, fp32, and cards of known families whose rate
  nobody measured, on which the shapes err by a quarter and the operators by a tenth
  (``advisor validate described``).

On published layouts left out by table, all on measured cards, the first errs less than half as
much (``docs/planners.md`` says how much, ``advisor validate layouts`` scores both).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from advisor.catalogue import Accelerator
from advisor.errors import CatalogueError
from advisor.machines.parts import AcceleratorPart, part
from advisor.planners.core.columns import FUSIONS, LOGIT_SCALES, Software
from advisor.planners.core.layer_table import LayerTable
from advisor.planners.core.nouns import PRECISION_BYTES, Device, TrainingSetup, Work
from advisor.planners.step.adapters import adapter_work
from advisor.planners.step.device import StepColumns
from advisor.planners.step.device_rates import runs_as

# Precision of the products -> index into ``planners.core.columns.PRECISIONS``.
PRECISION_CODES: Final[dict[str, int]] = {"bf16": 0, "fp16": 0, "fp8": 1, "tf32": 3}
_FITTED_ARCHITECTURES: Final = frozenset(
    {"Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Blackwell Ultra"}
)
_TUNED, _FLASH, _UNFUSED = 3, 2, 0
# Seconds of a forward pass among those of both, for what starts kernels (one and two passes).
_FORWARD_LAUNCHES: Final = 1 / 3


def shapes_law(
    device: Device,
    work: Work,
    accelerators: Mapping[str, Accelerator],
    by_operators: Collection[str] = (),
) -> tuple[AcceleratorPart, int] | None:
    """Return what the law of the shapes needs of a device, or None where it does not hold.

    Parameters
    ----------
    device : Device
    work : Work
        Whose precision is asked for.
    accelerators : mapping of str to Accelerator
        Of the catalogue.
    by_operators : collection of str
        Chip families that the law of the operators was fitted on: it answers for their cards
        whose rate nobody measured.

    Returns
    -------
    (Part, int) or None
        The accelerator (of a shared card: that share of it), and the code of its precision.
    """
    name, _, shared = device.name.partition("/")
    row = accelerators.get(name)
    if row is None or row.vendor != "NVIDIA" or row.architecture not in _FITTED_ARCHITECTURES:
        return None
    code = PRECISION_CODES.get(runs_as(device, work.precision))
    if code is None:
        return None
    try:
        known = part(row)
    except CatalogueError:
        return None
    if known.is_inferred and row.architecture in by_operators:
        return None
    if not shared:
        return known, code
    share = 1.0 / float(shared)
    return replace(
        known,
        flop_per_s=known.flop_per_s * share,
        memory_bytes_per_s=known.memory_bytes_per_s * share,
    ), code


def operator_table(work: Work, columns: StepColumns, log_factor: float = 0.0) -> LayerTable:
    """Return a layer's share of a model's times by the law of the operators.

    Parameters
    ----------
    work : Work
        Of a transformer.
    columns : StepColumns
        On one device, at the micro-batches 1, 2, 4, ...
    log_factor : float
        What measured steps say of the device (``planners.step.calibration``).
    """
    assert work.transformer is not None
    share = float(np.exp(log_factor)) / work.transformer.layers
    backward = columns.backward_s[0] * share
    forward = columns.micro_batch_s[0] * share - backward
    launch = float(columns.launch_s[0, -1]) * share
    return LayerTable(
        micro_batches=np.exp2(np.arange(columns.micro_batch_s.shape[1])),
        forward_s=forward,
        backward_s=backward,
        launch_s=(launch * _FORWARD_LAUNCHES, launch * (1 - _FORWARD_LAUNCHES)),
    )


def trained_share(work: Work) -> float:
    """Return the share of the model's own weights that have gradients and optimizer state."""
    return 0.0 if work.setup.has_adapters else 1.0 - work.setup.frozen_fraction


def passed_share(work: Work) -> float:
    """Return the share of the layers with a backward pass; frozen ones lie at the input."""
    assert work.transformer is not None
    return 1.0 - work.setup.frozen_layers(work.transformer) / work.transformer.layers


def _is_tuned_finely(setup: TrainingSetup) -> bool:
    """Whether a setup is that of fine-tuning with Hugging Face's Trainer, as far as it says.

    Weights in 16 bits without an fp32 copy, or adapters, are what its runs have and no others
    among those that the constants were fitted on: InternEvo's, torchtitan's and VectorLM's eager
    steps are nearer without the Trainer's costs (errors of 2.7, 3.3 and 4.0 against 2.2, 1.2 and
    2.4 %, `advisor train layout-model`'s rows), its own are not (3 and 4 against 11 and 7).
    """
    return setup.has_adapters or setup.weights == "bf16"


def software_of(work: Work) -> Software:
    """Return what the training software does as columns of the layout model."""
    setup = work.setup
    precision = work.precision
    # Kernels fused by hand are Megatron Core's, with Transformer Engine's attention: today's
    # overlap sends and tensor parallel products. PyTorch's checkpoints end with the last tensor
    # needed.
    is_megatron = setup.kernels == "fused"
    # The formula counts elements of two bytes.
    element = max(min(PRECISION_BYTES[precision], 4), 2)
    assert work.transformer is not None
    mean = setup.mean_bytes(work.transformer, precision)
    # Adapters' gradients and state are small, and shared out like the weights they stand beside.
    weight = mean.weight + (mean.gradient + mean.optimizer if setup.has_adapters else 0.0)
    adapters = adapter_work(setup, work.transformer)
    return Software(
        adapter_flop=adapters.flop,
        adapter_product_bytes=adapters.product_bytes,
        adapter_sum_bytes=adapters.sum_bytes,
        dequantised_bytes=adapters.dequantised_bytes,
        fusion=FUSIONS.index(setup.kernels),
        is_trainer=int(setup.kernels == "eager" and _is_tuned_finely(setup)),
        attention=_UNFUSED if setup.attention == "unfused" else _TUNED if is_megatron else _FLASH,
        overlaps_dp=int(setup.overlaps),
        overlaps_tp=int(is_megatron and setup.overlaps),
        overlaps_pp=int(is_megatron and setup.overlaps),
        stops_early=int(not is_megatron),
        gradient_bytes=setup.gradient_bytes(precision),
        weight_bytes=weight,
        optimizer_state_bytes=setup.optimizer_bytes(precision),
        logit_scale=LOGIT_SCALES[FUSIONS.index(setup.kernels)],
        activation_scale=element / 2,
    )
