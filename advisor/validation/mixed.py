"""Protocol ``mixed``: pipelines over unlike GPUs, from layer profiles and homogeneous runs.

Sailor's RTX clusters: the layer profile of each GPU type gives the stages, the nominal Ethernet
the links, with the global efficiencies of the layout model. AMP's trials: the single-sample
forward profile gives the stages up to five constants a model
(``planners.layouts.profiled_pipeline``),
fitted on the same model's homogeneous runs; a homogeneous run is scored with its own (tp, pp)
left out.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.measurements import AMP, LAYOUTS, SAILOR
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.units import bytes_per_s
from advisor.planners.layouts.pipeline import uneven_s
from advisor.planners.layouts.profiled_pipeline import ProfileRates, profiled_step_s, stage_sums
from advisor.validation.scores import Group, Scores, Validation, score
from advisor.ways.layout_model import load

# Sailor's desktop clusters: Gigabit Ethernet between machines, activations and gradients in fp32.
_ETHERNET_BYTES_PER_S: Final = bytes_per_s(1.0)
_FP32: Final = 4
# Where a file holds AMP's mixed trials without the homogeneous ones: constants fitted on the
# homogeneous gpt2 trials (T4), 2026-11-21, by ``fit`` below.
AMP_GPT2: Final = ProfileRates(
    fixed_share=0.443, sample_share=1.045, send_s=0.00355, reduce_s=0.4066, step_s=0.4814
)
NOTES: Final = (
    "Sailor's mixed rows: Gigabit Ethernet and two blocking sends were chosen on these rows by an "
    "earlier trial (7.8 %); efficiencies are the layout model's. To beat: Sailor 10.3, Metis "
    "27.7, FlashFlex 67 % on nine rows",
    "AMP: to beat 47.6 (T4), 16.4 (TransGAN), 49.4 % (mixed, rank correlation 0.40)",
    "AMP's mixed trials do not state the placement: the T4 machine is taken to hold the last "
    "stages, or replicas in every stage where there are fewer stages than machines",
    "no interval: profiles added up have none",
    "row sailor_validation-0008 repeats another row's time under another label and is left out",
)
SEEN: Final = (
    "Gigabit Ethernet and two blocking sends in Sailor's clusters: chosen on these rows",
    "the form and start of AMP's five constants, and where its T4 machine is placed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Predicted and measured step times of one group of runs [s]."""

    name: str
    predicted: Floats
    measured: Floats
    cluster: NDArray[np.str_]
    is_mixed: bool
    baseline: Floats | None = None

    def scores(self) -> Scores:
        """Return the group's scores."""
        return score(self.predicted, self.measured)


def run(data: Path) -> Validation:
    """Score the mixed runs (and AMP's homogeneous ones) under ``data``.

    Raises
    ------
    ModelError
        If there are neither Sailor's nor AMP's runs.
    """
    groups = _amp(_timed(LAYOUTS.read("runs", data), "amp_trials"), data)
    if SAILOR.is_in(data):
        groups = [*_sailor(_timed(SAILOR.read("runs", data), "sailor_validation"), data), *groups]
    if not groups:
        raise ModelError(f"{data} holds neither Sailor's nor AMP's runs")
    mixed = [g for g in groups if g.is_mixed] or groups
    overall = score(
        np.concatenate([g.predicted for g in mixed]), np.concatenate([g.measured for g in mixed])
    )
    return Validation(
        protocol="mixed",
        description="pipelines over unlike GPUs, from layer profiles and homogeneous runs",
        form="chosen with these rows in sight",
        scores="pipelines from layer profiles (planners.layouts), which no verb asks",
        seen=SEEN,
        overall=overall,
        groups=[Group(group=g.name, scores=g.scores()) for g in groups],
        baselines={
            f"AMP's own cost, {g.name}": score(g.baseline, g.measured)
            for g in groups
            if g.baseline is not None
        },
        beside={f"AMP's own cost, {g.name}": g.scores() for g in groups if g.baseline is not None},
        figures={
            f"{g.name} top-1 regret": round(float(np.mean(regrets)), 6)
            for g in groups
            if (regrets := _regrets(g))
        },
        notes=NOTES,
    )


def _regrets(trials: Trials) -> list[float]:
    """Return measured time of the chosen layout over the best, less 1, by cluster and job."""
    found = []
    for cluster in dict.fromkeys(trials.cluster):
        here = trials.cluster == cluster
        if np.count_nonzero(here) > 1:
            measured = trials.measured[here]
            chosen = int(np.argmin(trials.predicted[here]))
            found.append(float(measured[chosen] / measured.min() - 1))
    return found


def _timed(frame: Any, table: str) -> Any:
    """Return the runs of a source table that ended and were timed."""
    return frame[(frame.table == table) & (frame.status == "ok") & frame.step_s.notna()]


# Sailor --------------------------------------------------------------------------------------


def _sailor(frame: Any, data: Path) -> list[Trials]:
    frame = frame[frame.row_id != "sailor_validation-0008"]
    groups = []
    for hetero, name in ((1, "Sailor mixed RTX"), (0, "Sailor GH200 (homogeneous)")):
        rows = frame[frame.is_mixed == hetero]
        if rows.empty:
            continue
        profiles = SAILOR.read("layers", data)
        found = [(sailor_step_s(row, profiles), row) for row in rows.itertuples()]
        known = [(p, row) for p, row in found if p is not None]
        if known:
            groups.append(
                Trials(
                    name=name,
                    predicted=np.array([p for p, _ in known]),
                    measured=np.array([row.step_s for _, row in known]),
                    cluster=np.array(
                        [f"{r.model} {r.accelerator_mix} {r.global_batch}" for _, r in known]
                    ),
                    is_mixed=bool(hetero),
                )
            )
    return groups


def sailor_step_s(row: Any, profiles: Any) -> float | None:
    """Predict one of Sailor's runs from its layer profiles; None where a profile is missing."""
    replicas = json.loads(re.search(r"stage replicas: (\[\[.*?\]\])", row.notes).group(1))  # type: ignore[union-attr]
    layers = json.loads(row.stage_layers)
    name = {"opt-350m": "OPT-350", "gpt-neo-2.7B": "GPT-Neo-2.7"}.get(row.model, row.model)
    of_model = profiles[(profiles.model == name) & (profiles.micro_batch == row.micro_batch)]
    stages = []
    for stage in replicas:
        gpus = {replica.rsplit("x", 1)[0] for replica in stage}
        times = [_sailor_layers(of_model, gpu, int(row.tp)) for gpu in sorted(gpus)]
        if any(t.size != sum(layers) for t in times):
            return None
        stages.append(np.stack(times))
    summed = stage_sums(stages, layers)
    is_desktop = "RTX" in str(row.accelerator_mix)
    link = _ETHERNET_BYTES_PER_S if is_desktop else 4 * bytes_per_s(200.0)
    rates = load().parameters
    volume = _FP32 * row.micro_batch * row.sequence * row.hidden
    # Sending blocks both ways in every slot of the schedule.
    sends = (row.accumulation_steps + row.pp - 1) * 2 * volume / (rates.pp_efficiency * link)
    step = float(uneven_s(summed, int(row.accumulation_steps))) + (sends if row.pp > 1 else 0.0)
    share = max(layers) / sum(layers)
    gradients = _FP32 * row.parameters_1e9 * 1e9 * share
    ring = rates.dp_network_efficiency * link
    return float(step + 2 * (row.dp - 1) / row.dp * gradients / ring)


def _sailor_layers(of_model: Any, gpu: str, tp: int) -> Floats:
    rows = of_model[(of_model.accelerator == gpu) & (of_model.tp == tp)].sort_values("layer")
    return np.asarray((rows.forward_s + rows.backward_s).to_numpy(float))


# AMP -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amp:
    """One of AMP's trials with its stages' profiled forward time [s]."""

    forward_s: Floats
    layers: tuple[int, ...]
    dp: int
    tp: int
    pp: int
    micro_batch: int
    micro_batches: int
    measured_s: float
    own_cost: float

    def step_s(self, rates: ProfileRates) -> float:
        return profiled_step_s(
            self.forward_s,
            self.layers,
            dp=self.dp,
            tp=self.tp,
            micro_batch=self.micro_batch,
            micro_batches=self.micro_batches,
            rates=rates,
        )


def _amp(frame: Any, data: Path) -> list[Trials]:
    if frame.empty:
        return []
    profiles = AMP.read("layers", data)
    groups = []
    constants: dict[str, ProfileRates] = {"gpt2": AMP_GPT2}
    for model, rows in frame.groupby(frame.model.str.split("-").str[0]):
        runs = [_read_amp(row, str(model), profiles) for row in rows.itertuples()]
        is_mixed = rows.is_mixed.to_numpy(bool)
        same = [r for r, mixed in zip(runs, is_mixed, strict=True) if not mixed]
        if len(same) > len(_START):
            constants[str(model)] = fit(same)
            groups.append(_trials(f"AMP {model} homogeneous", same, _left_out(same), False))
        unlike = [r for r, mixed in zip(runs, is_mixed, strict=True) if mixed]
        if unlike and str(model) in constants:
            value = np.array([r.step_s(constants[str(model)]) for r in unlike])
            groups.append(_trials(f"AMP {model} mixed", unlike, value, True))
    return groups


def _trials(name: str, runs: list[_Amp], value: Floats, is_mixed: bool) -> Trials:
    own = np.array([r.own_cost for r in runs])
    return Trials(
        name=name,
        predicted=value,
        measured=np.array([r.measured_s for r in runs]),
        cluster=np.full(len(runs), name),
        is_mixed=is_mixed,
        baseline=own if np.isfinite(own).all() else None,
    )


def _read_amp(row: Any, model: str, profiles: Any) -> _Amp:
    layers = json.loads(row.stage_layers)
    types = [part.split(":")[0] for part in str(row.accelerator_mix).split(";")]
    of_type = {t: _amp_layers(profiles, model, t, int(row.tp)) for t in types}
    last = min(types, key=lambda t: _devices(str(row.accelerator_mix), t))
    others = [t for t in types if t != last] or types
    # The smaller group of machines holds the last ranks: the stages that begin behind this edge.
    edge = 1 - _devices(str(row.accelerator_mix), last) / row.accelerators
    stages: list[NDArray[np.float64]] = []
    for i in range(len(layers)):
        if i / len(layers) >= edge:
            here = [last]
        else:
            here = types if (i + 1) / len(layers) > edge else others
        stages.append(np.stack([of_type[t] for t in here]))
    cost = re.search(r"p_cost=([\d.]+)", row.notes)
    return _Amp(
        forward_s=stage_sums(stages, layers),
        layers=tuple(layers),
        dp=int(row.dp),
        tp=int(row.tp),
        pp=int(row.pp),
        micro_batch=int(row.micro_batch),
        micro_batches=max(1, round(row.global_batch / row.dp / row.micro_batch)),
        measured_s=float(row.step_s),
        own_cost=float(cost.group(1)) if cost else math.nan,
    )


def _devices(mix: str, gpu: str) -> int:
    return next(int(part.split(":")[1]) for part in mix.split(";") if part.split(":")[0] == gpu)


def _amp_layers(profiles: Any, model: str, gpu: str, tp: int) -> Floats:
    rows = profiles[
        (profiles.model == model) & (profiles.tp == tp) & profiles.accelerator.str.startswith(gpu)
    ]
    if rows.empty:
        raise ModelError(f"no AMP layer profile of {model} on {gpu} at tp {tp}")
    return np.asarray(rows.sort_values("layer").forward_s.to_numpy(float))


_START: Final = (1.5, 1.5, 0.01, 0.3, 0.05)


def fit(runs: list[_Amp]) -> ProfileRates:
    """Fit the five constants to measured runs, by log error, robustly."""
    from scipy.optimize import least_squares

    measured = np.log([r.measured_s for r in runs])

    def residuals(x: Floats) -> Floats:
        rates = _rates(x)
        return np.asarray(np.log([r.step_s(rates) for r in runs]) - measured)

    found = least_squares(
        residuals, np.log(_START), bounds=(-16.0, 4.0), loss="soft_l1", f_scale=0.1
    )
    return _rates(found.x)


def _rates(x: Floats) -> ProfileRates:
    fixed, sample, send, reduce_, step = map(float, np.exp(x))
    return ProfileRates(
        fixed_share=fixed, sample_share=sample, send_s=send, reduce_s=reduce_, step_s=step
    )


def _left_out(runs: list[_Amp]) -> Floats:
    """Predict each run by constants fitted on the runs of other (tp, pp)."""
    value = np.zeros(len(runs))
    for degrees in {(r.tp, r.pp) for r in runs}:
        rates = fit([r for r in runs if (r.tp, r.pp) != degrees])
        for i, r in enumerate(runs):
            if (r.tp, r.pp) == degrees:
                value[i] = r.step_s(rates)
    return value
