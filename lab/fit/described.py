"""Errors of the fitted step-time equation on what was left out: the source of its intervals.

Four ways of leaving out, each a fit of its own:

- ``model``: the device is known by other models' rows,
- ``device``: nothing of the device is known but its specifications,
- ``architecture``: nothing of its whole chip family,
- ``kind``: nothing of the class of operators that rules the job (convolutions: ResNets, VGGs).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.lab.data import GAVEL, LAMBDA, LAYERS, NEUSIGHT, NVIDIA_EXAMPLES, PROFET, RECORDED
from advisor.lab.data.recorded import recorded_steps
from advisor.lab.fit.described_columns import (
    CONVOLUTIONS,
    Array,
    DescribedRows,
    MeasuredStep,
    thinned,
)
from advisor.lab.fit.efficiencies import Fitted, StepModel
from advisor.machines.devices import suite_device
from advisor.planners.core import Operators, select
from advisor.planners.core.nouns import Device
from advisor.planners.core.setup import DEFAULT_SETUP, Precision, TrainingSetup, Transformer
from advisor.planners.step.calibrate import at_batch
from advisor.planners.step.describe import block_operators, transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.device import KINDS
from advisor.planners.step.device_rates import peak_flop_per_s, runs_as
from advisor.planners.step.ledger import Tally
from advisor.quantities import REACH_90

WAYS: Final = ("model", "device", "architecture", "kind")


Folds = dict[str, list[tuple[NDArray[np.bool_], Fitted]]]


def left_out_fits(
    rows: DescribedRows, fitted: Fitted, asked: NDArray[np.bool_] | None = None,
    parts: int | None = None,
) -> Folds:  # fmt: skip
    """Return, by way of leaving out, which rows were left out and the fit on the others.

    ``asked``: rows whose groups are left out; by default all. ``parts``: groups are left out
    together, in no more than so many parts a way; by default each alone.
    """
    model, is_convolutional = StepModel(rows), has_convolutions(rows)
    everything = np.ones(rows.log_s.size, bool)
    asked = everything if asked is None else asked
    groups: dict[str, tuple[NDArray[np.str_], NDArray[np.bool_]]] = {
        "model": (rows.model, everything),
        "device": (rows.device, everything),
        "architecture": (rows.architecture, everything),
        "kind": (np.where(is_convolutional, "convolutional", "other"), is_convolutional),
    }
    found: Folds = {}
    for way, (labels, wanted) in groups.items():
        names = np.unique(labels[wanted & asked])
        together = min(parts or names.size, names.size)
        left_out = [np.isin(labels, names[part::together]) for part in range(together)]
        found[way] = [
            (out, model.fit(~out, fitted.parameters)) for out in left_out if not out.all()
        ]
    return found


def has_convolutions(rows: DescribedRows) -> NDArray[np.bool_]:
    """Return which rows are of models whose products are convolutions."""
    codes = [KINDS.index(kind) for kind in CONVOLUTIONS]
    return np.bincount(rows.row, np.isin(rows.kind, codes), rows.log_s.size) > 0


def residuals_of(
    rows: DescribedRows, folds: Folds, *, has_deviations: bool = True
) -> dict[str, Array]:
    """Return ln(predicted / measured) of every row by each way of leaving out, nan where none.

    With the deviations of families, chips and boards, or as the planner predicts, without.
    """
    model, found = StepModel(rows), {}
    for way, fits in folds.items():
        predicted = np.full(rows.log_s.size, np.nan)
        for out, fitted in fits:
            predicted[out] = model.log_s(fitted, has_deviations=has_deviations)[out]
        found[way] = predicted - rows.log_s
    return found


def fitted_spreads(rows: DescribedRows, residuals: dict[str, Array]) -> dict[str, float]:
    """Return the standard deviations that the estimates' intervals are made of.

    ``log_sd`` is the error on a known device; each of the others is what one more unknown adds to
    it, in squares. A spread is read off the 90 % quantile of the absolute error, so that 90 %
    intervals of a normal distribution cover what was seen; suites count alike, whatever their
    number of rows. Recorded scripts are left aside: their hosts' spread is known besides.
    """
    is_described = rows.host == ""
    rows = rows.take(is_described)
    residuals = {way: r[is_described] for way, r in residuals.items()}
    spread = {way: _spreads(rows.suite, values) for way, values in residuals.items()}
    resnets = has_convolutions(rows)
    # Where every row is of one model, what is known of a device by other models is not known.
    known = spread["model"] or spread["device"]
    slope, mean_square = _of_distance(rows, residuals["device"])
    others = {way: _spreads(rows.suite[resnets], r[resnets]) for way, r in residuals.items()}
    log_sd = float(np.sqrt(np.mean(np.square(list(known.values())))))
    unmeasured = math.sqrt(max(_added(spread["device"], known) ** 2 - slope**2 * mean_square, 0.0))
    of_families = _of_families(rows, residuals["architecture"]) ** 2
    return {
        "log_sd": log_sd,
        "distance_log_sd": slope,
        "unmeasured_rate_log_sd": unmeasured,
        "unseen_architecture_log_sd": math.sqrt(max(of_families - log_sd**2 - unmeasured**2, 0.0)),
        "unseen_kind_log_sd": _added(others["kind"], others["device"]),
    }


def _of_families(rows: DescribedRows, residual: Array) -> float:
    """Return the root mean square error that nine of ten chip families stay below, left out.

    Each family counts once, and of it each suite: most have one card, so that what a family adds
    to a card cannot be told from cards left out (Kepler's errors are twice the others').
    """
    found = []
    for family in np.unique(rows.architecture[np.isfinite(residual)]):
        here = (rows.architecture == family) & np.isfinite(residual)
        of_suites = [
            np.mean(residual[here & (rows.suite == one)] ** 2)
            for one in np.unique(rows.suite[here])
        ]
        found.append(math.sqrt(float(np.mean(of_suites))))
    return float(np.quantile(found, 0.9)) if found else 0.0


def _of_distance(rows: DescribedRows, residual: Array) -> tuple[float, float]:
    """Return the deviation that a unit of distance adds, and the mean square distance.

    Of every device its rates' distance from the nearest other one, and the mean square error with
    it left out, suites and precisions alike; in squares a constant and a slope, neither negative.
    """
    from scipy.optimize import nnls

    distance, square = [], []
    for device in np.unique(rows.device[np.isfinite(residual)]):
        here = rows.device == device
        others = rows.log_rates[~here]
        if not others.size:
            continue
        apart = np.linalg.norm(others - rows.log_rates[here][0], axis=1)
        kinds = np.char.add(rows.suite, rows.is_half.astype(str))
        good = here & np.isfinite(residual)
        square.append(
            np.mean([np.mean(residual[good & (kinds == k)] ** 2) for k in np.unique(kinds[good])])
        )
        distance.append(float(apart.min()))
    if len(distance) < 3:
        return 0.0, 0.0
    found, _ = nnls(np.c_[np.ones(len(distance)), np.square(distance)], np.array(square))
    return float(np.sqrt(found[1])), float(np.mean(np.square(distance)))


# Two runs of one job on one type of device under different software: 8.2 % in the median of
# pairs, so 0.083 of one value (Lambda's suite, 88 pairs; shared/reference, findings_device 1).
_SOFTWARE_LOG_SD: Final = 0.083


def fitted_correlations(rows: DescribedRows, residual: Array) -> dict[str, float]:
    """Return how alike a job's errors are on two devices: what a measured factor carries over.

    Parameters
    ----------
    residual : ndarray of shape (n,)
        As the planner predicts, each device left out. A job is a model in a precision; of its
        batches the mean counts.

    Returns
    -------
    dict of str to float
        ``same_architecture``, ``same_kind`` (another chip family), as mean products of two errors
        over the mean square; ``same_device``: all but the software's own scatter. What was on no
        two such devices is left out. Suites count alike, whatever their number of devices.
    """
    frame = pd.DataFrame(
        {"suite": rows.suite, "model": rows.model, "is_half": rows.is_half, "error": residual,
         "device": rows.device, "family": rows.architecture}
    ).dropna()  # fmt: skip
    job = ["suite", "model", "is_half"]
    cells = frame.groupby([*job, "device", "family"])["error"].mean().reset_index()
    pairs = cells.merge(cells, on=job)
    pairs = pairs[pairs["device_x"] < pairs["device_y"]]
    found = {}
    for name, is_same in (("same_architecture", True), ("same_kind", False)):
        these = pairs[(pairs["family_x"] == pairs["family_y"]) == is_same]
        if len(these):
            a, b, suite = these["error_x"], these["error_y"], these["suite"]
            both, one, other = (
                float(product.groupby(suite).mean().mean()) for product in (a * b, a * a, b * b)
            )
            found[name] = both / math.sqrt(one * other)
    found["same_device"] = float(1.0 - _SOFTWARE_LOG_SD**2 / np.mean(frame["error"] ** 2))
    return found


def _spreads(suite: NDArray[np.str_], residual: Array) -> dict[str, float]:
    """Return, by suite, the deviation that the 90 % quantile of the absolute error stands for."""
    good = np.isfinite(residual)
    return {
        str(name): float(np.quantile(np.abs(residual[good & (suite == name)]), 0.9) / REACH_90)
        for name in np.unique(suite[good])
    }


def _added(larger: dict[str, float], smaller: dict[str, float]) -> float:
    """Return what ignorance adds in squares, the mean over suites; in none of them it helps."""
    more = [max(larger[name] ** 2 - smaller[name] ** 2, 0.0) for name in larger if name in smaller]
    return float(np.sqrt(np.mean(more))) if more else 0.0


# Measured steps of convolutional networks: Gavel's, PROFET's and NVIDIA's, as described jobs.
#
# They bring what the other suites lack: Kepler (K80), batches and image sizes, VGG with its 3 x 3
# convolutions. All compute in fp32 unless they say otherwise; images and batches are as their
# repositories state them.


# {} is the side of the images. [pixels]
NETWORKS: Final = {
    "ResNet18": "{}:64:2x64,2x128,2x256,2x512:basic",
    "ResNet34": "{}:64:3x64,4x128,6x256,3x512:basic",
    "ResNet50": "{}:64:3x256,4x512,6x1024,3x2048:bottleneck",
    "VGG11": "{}:0:1x64,1x128,2x256,2x512,2x512:plain:4096,4096",
    "VGG13": "{}:0:2x64,2x128,2x256,2x512,2x512:plain:4096,4096",
    "VGG16": "{}:0:2x64,2x128,3x256,3x512,3x512:plain:4096,4096",
}
# PROFET's smaller images are ruled by TensorFlow's own start of a step, which no device changes.
_SMALLEST_IMAGE: Final = 128
_INSTANCES: Final = {
    "g3s.xlarge": "M60", "g4dn.xlarge": "T4", "p2.xlarge": "K80", "p3.2xlarge": "V100-SXM2-16GB"
}  # fmt: skip
_GAVEL_GPUS: Final = {"k80": "K80", "p100": "P100-PCIe-16GB", "v100": "V100-SXM2-16GB"}
_NVIDIA_GPUS: Final = {
    ("V100", 16.0): "V100-SXM2-16GB", ("V100", 32.0): "V100-SXM2-32GB",
    ("A100", 40.0): "A100-SXM4-40GB", ("A100", 80.0): "A100-SXM4-80GB",
}  # fmt: skip
_NVIDIA_RESNET: Final = "Classification/ConvNets/resnet50v1.5"
_SGD: Final = TrainingSetup(optimizer="sgd-momentum")


def gavel_rows(data: Path) -> Iterator[MeasuredStep]:
    """Yield Gavel's ResNet-50 (ImageNet) alone on one GPU, by batch."""
    frame = GAVEL.read("throughputs", data)
    frame = frame[(frame["accelerators"] == 1) & frame["job"].str.startswith("ResNet-50 ")]
    cells = frame.groupby(["accelerator", "batch_per_accelerator"])["samples_per_s"].median()
    for cell in cells.reset_index().to_dict("records"):
        batch = int(cell["batch_per_accelerator"])
        name = str(cell["accelerator"])
        device = suite_device(_GAVEL_GPUS.get(name, name))
        if device is not None:
            yield _step(device, "ResNet50", 224, batch, batch / cell["samples_per_s"], "gavel")


def profet_rows(data: Path, *, is_whole: bool = False) -> Iterator[MeasuredStep]:
    """Yield PROFET's ResNets and VGGs on images of 128 pixels and more, by default thinned."""
    frame = PROFET.read("steps", data)
    frame = frame[frame["model"].isin(list(NETWORKS)) & (frame["image_pixels"] >= _SMALLEST_IMAGE)]
    keys = ["instance_type", "model", "image_pixels", "batch"]
    cells = frame.groupby(keys)["step_s"].median().reset_index()
    kept = cells if is_whole else thinned(cells, ["instance_type", "model"])
    for cell in kept.to_dict("records"):
        device = suite_device(_INSTANCES.get(str(cell["instance_type"]), ""))
        if device is not None:
            yield _step(
                device, str(cell["model"]), int(cell["image_pixels"]), int(cell["batch"]),
                cell["step_s"], "profet",
            )  # fmt: skip


def nvidia_rows(data: Path) -> Iterator[MeasuredStep]:
    """Yield NVIDIA's ResNet-50 examples on one GPU whose batch is stated."""
    frame = NVIDIA_EXAMPLES.read("throughputs", data)
    is_resnet = frame["page"].str.contains(_NVIDIA_RESNET, regex=False)
    for row in frame[is_resnet & (frame["accelerators"] == 1)].to_dict("records"):
        name = _NVIDIA_GPUS.get((row["accelerator"], row["accelerator_memory_gb"]))
        precision: Precision = {"mixed": "fp16", "tf32": "tf32"}.get(row["precision"], "fp32")  # type: ignore[assignment]
        batch = _batch(str(row["batch"]), is_half=precision == "fp16")
        device = suite_device(name or "")
        if device is not None and batch is not None:
            yield _step(device, "ResNet50", 224, batch, batch / row["value"], "nvidia", precision)


def _batch(text: str, *, is_half: bool) -> int | None:
    """Return a batch of ``"256"`` or ``"128 (FP32) / 256 (AMP)"``, None where none is stated."""
    sizes = [int(size) for size in re.findall(r"\d+(?= |$)", text)]
    return sizes[-1 if is_half else 0] if sizes else None


def _step(
    device: Device, model: str, image: int, batch: int, seconds: float, suite: str,
    precision: Precision = "fp32",
) -> MeasuredStep:  # fmt: skip
    network = parse_network(NETWORKS[model].format(image))
    work = convolutional_work(network, micro_batch=batch, precision=precision, setup=_SGD)
    return MeasuredStep(
        seconds=seconds, operators=work.operators, work=work, has_update=True, device=device,
        is_half=precision == "fp16", model=model.lower(), family=f"{suite} {model[:3].lower()}",
        suite=suite,
    )  # fmt: skip


# Measured transformer layers (Cephalo's and Zorse's profiles) as described jobs.


# Attention heads by model, as benson-guo/zorse at 105c41a builds them (``models/*_simple.py``);
# hidden / 128 for others. Its GPTs have as many heads as the published ones have columns a head
# (128, 80), so that their scores, 128 x 512 x 512 a sample, take longer than many a product.
HEADS: Final = {
    "bert_large": 16, "bert_xlarge": 24, "gpt_1.3b": 128, "gpt_2.7b": 80, "gpt_6.7b": 128,
    "gpt_test": 128, "gpt_175b": 96, "llama_13b": 40, "llama_33b": 52, "llama_3b": 32,
    "llama_65b": 64, "llama_7b": 32, "llama_tiny": 32, "vit_e": 16, "vit_g": 16,
}  # fmt: skip
# Its images of 384 pixels (``profile_models.sh``) are 24 x 24 patches and one token more, whatever
# sequence the table states.
_IMAGE_TOKENS: Final = 577
# Its Llama calls PyTorch's fused attention, but on a P40 (``models/llama_simple.py``).
_UNFUSED_LLAMA: Final = ("P40",)
UNFUSED: Final = TrainingSetup(attention="unfused")


def layer_frame(data: Path) -> pd.DataFrame:
    """Read the layer profiles whose sizes are stated, on GPUs of the device sheet.

    Raises ModelError if the table cannot be read or has other columns.
    """
    rows = LAYERS.read("profiles", data)
    is_known = [suite_device(name) is not None for name in rows["accelerator"]]
    return rows[is_known].reset_index(drop=True)


def layer_steps(frame: pd.DataFrame) -> Iterator[MeasuredStep]:
    """Yield the layers of a frame; no update is timed.

    Raises ModelError if a time is not positive or implausible; the error shows the row.
    """
    for row in frame.to_dict("records"):
        device = suite_device(str(row["accelerator"]))
        if device is None:
            continue
        name = str(row["model"]).replace("deepspeed", "").replace("llamav2", "llama")
        is_half = row["precision"] == "float16"
        precision: Precision = "fp16" if is_half else "fp32"
        micro, is_fused = int(row["micro_batch"]), _is_fused(name, device)
        model = _layer(row, name, is_fused=is_fused)
        operators = Operators.of(
            block_operators(Tally(element=2 if is_half else 4, dtype=precision), model, micro)
        )
        seconds = float(row["forward_s"] + row["backward_s"])
        peak = peak_flop_per_s(device, runs_as(device, precision)) or 1.0
        if not seconds > 0 or operators.flop.sum() / seconds > 2 * peak:
            shown = {str(k): v for k, v in row.items()}
            raise ModelError(
                f"twice the device's peak or no time at all: {shown}", hint="are the units ms?"
            )
        yield MeasuredStep(
            seconds=seconds,
            operators=operators,
            work=transformer_work(
                replace(model, has_flash_attention=True),
                micro_batch=micro,
                precision=precision,
                setup=DEFAULT_SETUP if is_fused else UNFUSED,
            ),
            device=device, is_half=is_half, has_update=False, model=name,
            family=name.split("_")[0], suite="layers",
        )  # fmt: skip


def _is_fused(name: str, device: Device) -> bool:
    return name.startswith("llama") and device.name not in _UNFUSED_LLAMA


def _layer(row: Mapping[Hashable, object], name: str, *, is_fused: bool) -> Transformer:
    is_image = name.startswith("vit")
    hidden = int(str(row["hidden"]).partition(".")[0])
    is_gated = name.startswith("llama")
    parameters = float(str(row["parameters_per_layer"]))
    ffn = (parameters - 4 * hidden**2) / ((3 if is_gated else 2) * hidden)
    return Transformer(
        layers=1, hidden=hidden, heads=HEADS.get(name, max(hidden // 128, 1)),
        sequence=_IMAGE_TOKENS if is_image else int(str(row["sequence"]).partition(".")[0]),
        vocabulary=0, ffn=max(int(ffn), 1), is_gated=is_gated, is_causal=not is_image,
        has_flash_attention=is_fused,
    )  # fmt: skip


# Measured steps of models that can be described: layers, NeuSight's suite, Lambda's suite.
#
# Every row is a described job (``planners.step.describe``) on a device, as columns of operators
# that the step-time equation of ``planners.step.device`` is evaluated on. Only sizes that the
# suites state are used; what they leave open (attention written out or fused, precision of fp32
# products) is set here for a suite as a whole.


# Published configurations of NeuSight's models: (layers, hidden, heads, vocabulary, is_causal).
# Its GPT3-XL has the 24 heads of 128 of Brown et al. (table 2.1), side by side, which are 3,072
# wide and not the 2,048 of the table: on every device, and by the suite's own roofline, it takes
# as long as its GPT3-2.7B, of which 2,048 would be half.
NEUSIGHT_MODELS: Final = {
    "bert_large": (24, 1024, 16, 30522, False), "gpt2_large": (36, 1280, 20, 50257, True),
    "gpt3_xl": (24, 3072, 24, 50257, True), "opt_13": (24, 2048, 32, 50272, True),
    "gpt3_27": (32, 2560, 32, 50257, True),
}  # fmt: skip
RESNET50: Final = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"
# Lambda's BERT fine-tunes on questions: 384 tokens (NVIDIA's example scripts).
LAMBDA_BERT: Final = {"bert_base_squad": (12, 768, 12), "bert_large_squad": (24, 1024, 16)}
_BERT_TOKENS: Final = 384
# What the suites' software is asked as, beside ``UNFUSED``: NVIDIA's examples have Apex's kernels.
APEX: Final = TrainingSetup(attention="unfused", kernels="fused")


def read_steps(data: Path) -> list[MeasuredStep]:
    """Read the steps of every suite that lies under ``data``.

    Raises ModelError if none is there, or one has other columns.
    """
    rows: list[MeasuredStep] = []
    readers = (
        (LAYERS, "profiles", _layers), (NEUSIGHT, "latencies", neusight_rows),
        (LAMBDA, "throughputs", _lambda), (GAVEL, "throughputs", gavel_rows),
        (PROFET, "steps", profet_rows), (NVIDIA_EXAMPLES, "throughputs", nvidia_rows),
    )  # fmt: skip
    for suite, table, reader in readers:
        if suite.has(table, data):
            try:
                rows += reader(data)
            except (KeyError, ValueError) as error:
                raise ModelError(
                    f"cannot read {suite.title}: {error}", hint="name the measurements with --data"
                ) from error
    if not rows:
        raise ModelError(f"no measurements under {data}", hint="name their folder with --data")
    return rows


def known_steps(data: Path) -> list[MeasuredStep]:
    """Return the described steps, then those of recorded scripts: what the device model is of.

    Raises ModelError as ``read_steps``.
    """
    return [*read_steps(data), *recorded_rows(data)]


def recorded_rows(data: Path) -> list[MeasuredStep]:
    """Return the published steps of recorded scripts, in the batch and precision of the table.

    None where the tables are not there.
    """
    if not RECORDED.has("torchvision", data):
        return []
    found = []
    for step in recorded_steps(data):
        assert step.job.work is not None
        work = at_batch(step.job.work, step.batch)
        has_update = bool(work.operators.is_update.any())
        found.append(
            MeasuredStep(
                seconds=step.seconds, operators=work.operators, work=work, device=step.device,
                is_half=step.precision != "fp32", has_update=has_update, model=step.network,
                family=step.family, suite=f"recorded, {step.suite}", host=step.machine,
            )
        )  # fmt: skip
    return found


def _layers(data: Path) -> Iterator[MeasuredStep]:
    yield from layer_steps(thinned(layer_frame(data), ["accelerator", "model", "precision"]))


def neusight_rows(data: Path) -> Iterator[MeasuredStep]:
    """Yield NeuSight's single-device training rows of dense transformers; no update is timed."""
    frame = NEUSIGHT.read("latencies", data)
    frame = frame[(frame["mode"] == "train") & frame["layout"].isna()]
    for row in frame.to_dict("records"):
        device = suite_device(row["accelerator"])
        known = NEUSIGHT_MODELS.get(row["model"])
        if device is None or known is None:
            continue
        layers, hidden, heads, vocabulary, is_causal = known
        model = Transformer(
            layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary,
            sequence=int(row["sequence"]), is_causal=is_causal, has_flash_attention=False,
        )  # fmt: skip
        work = transformer_work(
            model, micro_batch=int(row["batch"]), precision="fp32", setup=UNFUSED
        )
        yield MeasuredStep(
            seconds=row["measured_s"],
            operators=select(work.operators, ~work.operators.is_update),
            work=work, has_update=False, device=device, is_half=False,
            model=row["model"], family="neusight", suite="neusight",
        )  # fmt: skip


def _lambda(data: Path) -> Iterator[MeasuredStep]:
    frame = LAMBDA.read("throughputs", data)
    frame = frame[(frame["accelerators"] == 1) & frame["model"].isin(["resnet50", *LAMBDA_BERT])]
    measured = ["units_per_s", "batch_per_accelerator"]
    cells = frame.groupby(["accelerator", "precision", "model"])[measured].median()
    for cell in cells.dropna().reset_index().to_dict("records"):
        precision, name = str(cell["precision"]), str(cell["model"])
        device = suite_device(str(cell["accelerator"]))
        if device is None or cell["batch_per_accelerator"] < 1:
            continue
        batch = int(cell["batch_per_accelerator"])
        # Lambda's fp32 is what the framework does by default: TF32 where the chip has it.
        single: Precision = "tf32" if device.tf32_flop_per_s else "fp32"
        asked: Precision = "fp16" if precision == "fp16" else single
        if name == "resnet50":
            work = convolutional_work(parse_network(RESNET50), micro_batch=batch, precision=asked)
        else:
            layers, hidden, heads = LAMBDA_BERT[name]
            model = Transformer(
                layers=layers, hidden=hidden, heads=heads, sequence=_BERT_TOKENS,
                vocabulary=30522, is_causal=False, has_flash_attention=False, has_head=False,
            )  # fmt: skip
            work = transformer_work(model, micro_batch=batch, precision=asked, setup=APEX)
        yield MeasuredStep(
            seconds=batch / cell["units_per_s"], operators=work.operators, work=work,
            has_update=True, device=device, is_half=precision == "fp16", model=name,
            family="resnet" if name == "resnet50" else "lambda bert", suite="lambda",
        )  # fmt: skip
