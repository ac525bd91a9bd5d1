"""Times of a recorded model's units on a device: the device's step, shared out.

The device model times whole steps (operators are counted, not placed). A unit's share of a step
is that of its layers, each timed as one operator by the same roofline, and corrected by what the
recording measured of it:

    w_u = p_u(device) (m_u / p_u(host))^g,      t_u(b) = t(b) w_u(b) / sum_v w_v(b)

| here              | meaning                                                                     |
|-------------------|-----------------------------------------------------------------------------|
| ``p``             | roofline of the unit's layers: flop, weights and activations moved [s]      |
| ``m``             | measured forward or backward of the unit on the host [s]                    |
| ``g``             | how far a measured error carries to the device (``step.calibration``)   |
| ``t``             | forward or backward of the whole model on the device, calibrated [s]        |

So the units always add up to the step that every other planner uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.nouns import PRECISION_BYTES, Device, Layer, Operator, Work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.model_units import Unit, is_normalisation, layer_kind

# A roofline of nothing takes nothing: the least share of a unit, so that logarithms exist. [s]
_LEAST_S = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Times of a model's units on one device.

    Attributes
    ----------
    micro_batches : array of shape (n_batches,)
        They rise. [samples]
    forward_s, backward_s : arrays of shape (n_batches, n_units)
        Times of one micro-batch. [s]
    log_sd : float
        One standard deviation of ln(error) of the whole step, calibrated.
    """

    micro_batches: Floats
    forward_s: Floats
    backward_s: Floats
    optimizer_s: float
    log_sd: float

    def at(self, micro_batch: ArrayLike) -> tuple[Floats, Floats]:
        """Return forward and backward of every unit, shape (..., n_units), between the points.

        Outside of the tabulated micro-batches the nearest two points' line goes on.
        """
        b = np.asarray(micro_batch, float)
        known = self.micro_batches
        if known.size == 1:
            scale = (b / known[0])[..., None]
            return self.forward_s[0] * scale, self.backward_s[0] * scale
        i = np.clip(np.searchsorted(known, b, side="right") - 1, 0, known.size - 2)
        share = ((b - known[i]) / (known[i + 1] - known[i]))[..., None]
        return (
            self.forward_s[i] * (1 - share) + self.forward_s[i + 1] * share,
            self.backward_s[i] * (1 - share) + self.backward_s[i + 1] * share,
        )


def unit_times(
    work: Work,
    parts: Sequence[Unit],
    device: Device,
    micro_batches: ArrayLike,
    parameters: DeviceParameters,
    *,
    host: Device | None = None,
    gain: float = 0.0,
    log_factor: float = 0.0,
    log_sd: float | None = None,
    tp: int = 1,
) -> UnitTimes:
    """Return the times of a model's units on a device.

    Parameters
    ----------
    parts : sequence of Unit
        ``model_units.units(work)``; a single one is the whole model.
    micro_batches : array-like of shape (n_batches,)
    host : Device, optional
        Where the layers were measured; None leaves their measured times out.
    gain : float
        g: 0 trusts the roofline alone, 1 the measured shares.
    log_factor, log_sd : float
        Calibration of the whole step (``calibration.calibrate``).
    tp : int
        Tensor-parallel ranks: all but the normalisations is divided; the shares of the undivided
        model are taken and the divided layers' parts shrink as their roofline does.
    """
    batches = np.atleast_1d(np.asarray(micro_batches, float))
    whole = step_time(work, [device], batches, parameters)
    scale = float(np.exp(log_factor))
    backward = whole.backward_s[0] * scale
    forward = whole.micro_batch_s[0] * scale - backward
    if len(parts) == 1:
        f_roof = b_roof = np.ones((batches.size, 1))
    else:
        f_roof, b_roof = (x[0] for x in _rooflines(work, parts, [device], batches, parameters, 1))
    f_weight, b_weight = f_roof, b_roof
    if host is not None and gain and len(parts) > 1:
        f_seen, b_seen = _seen(work, parts, host, parameters)
        f_weight, b_weight = f_roof * f_seen**gain, b_roof * b_seen**gain
    f = forward[:, None] * f_weight / f_weight.sum(axis=1, keepdims=True)
    b = backward[:, None] * b_weight / b_weight.sum(axis=1, keepdims=True)
    if tp > 1 and len(parts) > 1:
        f_part, b_part = (x[0] for x in _rooflines(work, parts, [device], batches, parameters, tp))
        f, b = f * np.minimum(f_part / f_roof, 1.0), b * np.minimum(b_part / b_roof, 1.0)
    return UnitTimes(
        micro_batches=batches,
        forward_s=f,
        backward_s=b,
        optimizer_s=float(whole.optimizer_s[0]) * scale / tp,
        log_sd=float(whole.log_sd[0]) if log_sd is None else log_sd,
    )


def unit_shares(
    work: Work, parts: Sequence[Unit], targets: Sequence[Device], parameters: DeviceParameters
) -> Floats:
    """Return what share of a step each unit takes, the mean over devices, shape (n_units,).

    By the roofline alone, at the recorded micro-batch: where many devices are compared at once,
    one set of shares stands for all of them.
    """
    at = np.array([float(work.micro_batch)])
    forward, backward = _rooflines(work, parts, targets, at, parameters, 1)
    both = forward[:, 0] + backward[:, 0]
    return np.asarray((both / both.sum(axis=1, keepdims=True)).mean(axis=0))


def _rooflines(
    work: Work,
    parts: Sequence[Unit],
    targets: Sequence[Device],
    batches: Floats,
    parameters: DeviceParameters,
    tp: int,
) -> tuple[Floats, Floats]:
    """Return forward and backward by the roofline, (n_devices, n_batches, n_units) [s]."""
    found = []
    given = 0.0
    for part in parts:
        operators: list[Operator] = []
        for layer in part.layers:
            share = tp if part.is_block and not is_normalisation(layer) else 1
            operators += _operators(layer, work, given, share)
            given = layer.output_bytes_per_sample
        columns = step_time(
            replace(work, operators=tuple(operators)), targets, batches, parameters
        )
        found.append((columns.micro_batch_s - columns.backward_s, columns.backward_s))
    forward = np.stack([f for f, _ in found], axis=2)
    backward = np.stack([b for _, b in found], axis=2)
    return np.maximum(forward, _LEAST_S), np.maximum(backward, _LEAST_S)


def _operators(layer: Layer, work: Work, given: float, share: int) -> list[Operator]:
    """Return one operator a pass: the layer's flop, its parameters, its input and its output.

    The backward pass reads the parameters for the input's gradient and writes their own.
    """
    moved = (given + layer.output_bytes_per_sample) * work.micro_batch
    stored = work.parameter_bytes / max(work.parameters, 1)
    weights = layer.parameters * stored
    kind = layer_kind(layer)
    dtype = "bf16" if PRECISION_BYTES.get(work.precision, 4) == 2 else "fp32"
    flops = (layer.forward_flop_per_sample, layer.backward_flop_per_sample)
    return [
        Operator(
            name=layer.name,
            kind=kind,
            phase="forward" if times == 1 else "backward",
            count=times,
            flop=flop * work.micro_batch / share,
            bytes=times * (moved + weights) / share,
            fixed_bytes=times * weights / share,
            dtype=dtype,
        )
        for times, flop in zip((1, 2), flops, strict=True)
    ]


def _seen(
    work: Work, parts: Sequence[Unit], host: Device, parameters: DeviceParameters
) -> tuple[Floats, Floats]:
    """Return measured over roofline on the host by unit; 1 where a unit was not measured."""
    at = np.array([float(work.micro_batch)])
    found = []
    for roof, times in zip(
        _rooflines(work, parts, [host], at, parameters, 1),
        ([_sum(p, "forward_s") for p in parts], [_sum(p, "backward_s") for p in parts]),
        strict=True,
    ):
        ratio = np.array([t / r if t else np.nan for t, r in zip(times, roof[0, 0], strict=True)])
        if np.isnan(ratio).all():
            found.append(np.ones(len(parts)))
            continue
        # What the whole step missed is the calibration's; here only how units differ counts.
        ratio = ratio / np.exp(np.nanmean(np.log(ratio)))
        found.append(np.nan_to_num(ratio, nan=1.0))
    return found[0], found[1]


def _sum(part: Unit, name: str) -> float:
    return float(sum(getattr(layer, name) or 0.0 for layer in part.layers))
