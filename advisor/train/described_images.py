"""Measured steps of convolutional networks: Gavel's, PROFET's and NVIDIA's, as described jobs.

They bring what the other suites lack: Kepler (K80), batches and image sizes, VGG with its 3 x 3
convolutions. All compute in fp32 unless they say otherwise; images and batches are as their
repositories state them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from advisor.lab.data import GAVEL, NVIDIA_EXAMPLES, PROFET
from advisor.machines.devices import suite_device
from advisor.planners.core.nouns import Device, Precision, TrainingSetup
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.train.measured_step import MeasuredStep, thinned

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
