"""How many GPU scripts are rehearsed unchanged, and what that costs: ``tests/zoo/gpu``.

    python -m advisor.lab.experiments.rehearsal [--python PYTHON] [NAME ...]
    python -m advisor.lab.experiments.rehearsal --sizes
    python -m advisor.lab.experiments.rehearsal --published [--python PYTHON]
    python -m advisor.lab.experiments.rehearsal --memory

Every script is one that trains on CUDA, re-made by its structure. A script passes if a whole step
of it was traced. ``--python`` names an interpreter that has the packages that some of them need
(transformers, peft, bitsandbytes, lightning, accelerate). ``--sizes`` rehearses one Llama script
at four sizes, and 70B under FSDP2 on 64 ranks. ``--published`` rehearses scripts of image networks
whose steps on GPUs are published and asks for those, the GPU left out, beside the same scripts
recorded (protocol ``recorded``). ``--memory`` rehearses the scripts of published peaks of memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from advisor import data as folders
from advisor.collectors.format import Recording
from advisor.collectors.run import profile, rehearsed
from advisor.jobs import Job
from advisor.lab.data.recorded import RecordedStep, image_sizes, record, recorded_steps
from advisor.lab.experiments import zoo
from advisor.lab.score.asked import step_on
from advisor.lab.score.harness import Answers
from advisor.lab.score.recorded import read_recorded, without_group
from advisor.planners.step.device_rates import unmeasured

SCRIPTS = zoo.SCRIPTS / "gpu"
# What others import, not scripts themselves.
_PARTS = {"resnet", "gpt"}
_RANKS = {
    "deepspeed_zero3",
    "fsdp2",
    "tensor_parallel",
    "fsdp_tp",
    "fsdp1",
    "ddp_toy",
    "imagenet_nccl",
    "megatron_llama",
}
_SIZES = {
    "1B": ("--size", "1b"),
    "7B": ("--size", "7b"),
    "70B": ("--size", "70b"),
    "405B": ("--size", "405b"),
    "70B, FSDP2, one of 64 ranks": ("--size", "70b", "--fsdp"),
}


def main() -> None:
    """Rehearse the scripts that are named, all by default, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    if given.published:
        published(given.python)
    if given.memory:
        memory(given.python)
    if given.published or given.memory:
        return
    names = given.names or sorted(p.stem for p in SCRIPTS.glob("*.py") if p.stem not in _PARTS)
    cases = {name: (name, ()) for name in names}
    if given.sizes:
        cases = {size: ("llama", words) for size, words in _SIZES.items()}
    columns = ("script", "rehearsed", "parameters", "Gflop", "peak [MiB]", "CPU [s]", "wall [s]")
    table = Table(*columns, "host memory [MiB]")
    passed = 0
    for case, (name, words) in cases.items():
        seen, wall_s = rehearse(given.python, name, words)
        passed += seen.deep_step is not None
        table.add_row(case, *_row(seen), f"{wall_s:.1f}", f"{seen.peak_rss_bytes / 2**20:,.0f}")
    console = Console()
    console.print(table)
    console.print(f"{passed} of {len(cases)} rehearsed")


def rehearse(
    python: str,
    name: str,
    words: tuple[str, ...],
    *,
    ranks: int = 0,
    device: dict[str, Any] | None = None,
) -> tuple[Recording, float]:
    """Return the recording of a script, and how long it took [s]."""
    ranks = ranks or (64 if "--fsdp" in words else 8 if name in _RANKS else 1)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seen = profile(
            [python, str(SCRIPTS / f"{name}.py"), *words],
            run_root=Path(folder),
            limit_s=150.0,
            measure_host=False,
            rehearsal=rehearsed(when="always", device=device, devices=min(ranks, 8), ranks=ranks),
        )
    return seen, time.monotonic() - begin_s


def _row(seen: Recording) -> tuple[str, ...]:
    deep, rehearsal = seen.deep_step, seen.rehearsal
    cpu_s = f"{seen.readings[-1].cpu_s:.1f}" if seen.readings else ""
    if deep is None or rehearsal is None:
        return f"no: {seen.stop_reason}", "", "", "", cpu_s
    flop = sum(deep.operators["flop"])
    peak = (rehearsal.peak_bytes or 0) / 2**20
    return "yes", f"{deep.parameters:,}", f"{flop / 1e9:,.0f}", f"{peak:,.0f}", cpu_s


# Against published steps and peaks.

_NETWORKS = (
    "torchvision-vgg16", "torchvision-resnet18", "torchvision-resnet50",
    "torchvision-resnext50_32x4d", "torchvision-densenet121", "torchvision-squeezenet1_0",
    "torchvision-shufflenet_v2_x1_0", "torchvision-mobilenet_v2", "torchvision-mnasnet1_0",
    "timm-resnet50", "timm-cspdarknet53", "timm-dla34", "timm-hrnet_w18", "timm-inception_v3",
    "timm-vit_base_patch16_224", "timm-swin_tiny_patch4_window7_224", "timm-xcit_tiny_12_p8_224",
    "timm-mobilenetv3_large_100", "timm-regnetv_040", "timm-convmixer_768_32",
)  # fmt: skip


def published(python: str) -> None:
    """Print how far answers are off for scripts that were rehearsed, and recorded."""
    data = folders.measurements(None)
    jobs = _rehearsed_jobs(python, data)
    asked = {_key(step): step for step in recorded_steps(data, jobs.get)}
    facts = read_recorded(data).facts
    rows = [i for i, step in enumerate(facts.steps) if _key(step) in asked]
    found = np.full((4, len(rows)), np.nan)
    for gpu in dict.fromkeys(facts.steps[i].device.name for i in rows):
        asking = without_group(facts, "GPU", gpu)
        for at, i in enumerate(rows):
            step = facts.steps[i]
            if step.device.name == gpu:
                missing = unmeasured(step.device)
                found[:2, at] = step_on(asking, asked[_key(step)].job, missing)
                found[2:, at] = step_on(asking, step.job, missing)
    truth = np.array([facts.steps[i].seconds for i in rows])
    table = Table("scripts", "networks", "rows", "mean APE", "median APE", "covered", "ends apart")
    for name, (value, log_sd) in (("rehearsed", found[:2]), ("recorded", found[2:])):
        answers = Answers.spread(value, log_sd)
        scores = answers.scores(truth)
        assert answers.low is not None
        assert answers.high is not None
        ends = float(np.nanmedian(answers.high / answers.low))
        table.add_row(
            name, f"{len(jobs)}", f"{len(rows)}", f"{scores.mape_fraction:.1%}",
            f"{scores.median_ape_fraction:.1%}",
            f"{scores.coverage or 0.0:.0%}", f"{ends:.2f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    apart = np.abs(np.log(found[0] / found[2]))
    median, most = np.expm1(np.median(apart)), np.expm1(np.max(apart))
    console.print(f"the two answers are {median:.1%} apart in the median, {most:.1%} at most")


def _rehearsed_jobs(python: str, data: Path) -> dict[str, Job]:
    sizes, found = image_sizes(data), {}
    with tempfile.TemporaryDirectory() as runs:
        for name in _NETWORKS:
            image = sizes.get(name.partition("-")[2], 224)
            job = record(f"{name}-b2", image, Path(runs), python=python, rehearse=True)
            assert job.work is not None
            work = replace(job.work, layers=(), transformer=None)
            found[f"{name}-b2"] = replace(job, work=work)
            sys.stderr.write(f"{name}\n")
    return found


def _key(step: RecordedStep) -> tuple[object, ...]:
    return (step.suite, step.network, step.batch, step.precision, step.device.name, step.file)


# What a published reading is of: live blocks, the allocator's segments, or these where the stack
# lets them expand.
_Reading = Literal["allocated", "reserved", "expanding"]


@dataclass(frozen=True)
class _Peak:
    source: str
    script: str
    words: str
    ranks: int
    device: dict[str, Any]
    gib: float  # published
    reading: _Reading
    context_gib: float = 0.0  # what the driver's reading has beside, as published with it


_H100 = {"name": "NVIDIA H100", "memory_bytes": 95 << 30, "capability": (9, 0)}
_B200 = {"name": "NVIDIA B200", "memory_bytes": 178 << 30, "capability": (10, 0)}
_V100 = {"name": "Tesla V100-SXM2-16GB", "memory_bytes": 16160 << 20, "capability": (7, 0)}
_P40 = {"name": "Tesla P40", "memory_bytes": 24 << 30, "capability": (6, 1)}
_TITAN = "--size 8b --fsdp --recompute selective --batch 2 --sequence 8192"
_LONG = "--size 8b --fsdp --recompute full --batch 1 --sequence 32768"
_SMALL = "--batch 1 --passes 4"
_CONTEXT_GIB = 1343 / 1024  # of the guide's V100, as it prints it
# Words, MiB: Transformers' guide to training on one GPU, docs/source/en/perf_train_gpu_one.mdx.
_BERT = (
    ("", 14949), (_SMALL, 8681), (f"{_SMALL} --checkpointed", 6775), ("--fp16", 13939),
    (f"{_SMALL} --checkpointed --fp16", 7275), ("--optimizer adafactor", 12295),
    (f"{_SMALL} --checkpointed --fp16 --optimizer adafactor", 4847),
    ("--optimizer adam8bit", 13085),
    (f"{_SMALL} --checkpointed --fp16 --optimizer adam8bit", 5363),
)  # fmt: skip
_PEAKS = (
    _Peak("torchtitan, 8 x H100", "llama", _TITAN, 8, _H100, 82.4, "expanding"),
    _Peak("torchtitan, 128 x H100", "llama", _TITAN, 128, _H100, 67.0, "expanding"),
    _Peak("torchtitan, compiled, 8 x H100", "llama", _TITAN, 8, _H100, 77.0, "expanding"),
    _Peak("torchtitan, compiled, 128 x H100", "llama", _TITAN, 128, _H100, 62.0, "expanding"),
    _Peak("torchtitan, compiled, fp8, 8 x H100", "llama", _TITAN, 8, _H100, 76.8, "expanding"),
    _Peak("torchtitan, compiled, fp8, 128 x H100", "llama", _TITAN, 128, _H100, 61.8, "expanding"),
    _Peak("torchtitan, fp8, 32768 tokens, 8 x H100", "llama", _LONG, 8, _H100, 83.9, "expanding"),
    _Peak("Megatron-LM, 8 x B200, pp 2", "megatron_llama", "--pp 2", 8, _B200, 66.55, "allocated"),
    _Peak("Megatron-LM, 8 x B200, tp 2", "megatron_llama", "--tp 2", 8, _B200, 60.68, "allocated"),
    _Peak("Megatron-LM, 8 x B200, tp 4", "megatron_llama", "--tp 4", 8, _B200, 39.07, "allocated"),
    _Peak("Megatron-LM, 8 x B200, tp 8", "megatron_llama", "--tp 8", 8, _B200, 28.29, "allocated"),
    *(
        _Peak(f"BERT-large, V100 {w}", "bert_large", w, 1, _V100, mib / 1024, "reserved",
              _CONTEXT_GIB)
        for w, mib in _BERT
    ),
    _Peak("U-Net of torchgpipe, P40", "unet_memory", "", 1, _P40, 20.3, "reserved"),
)  # fmt: skip


def memory(python: str) -> None:
    """Print published peaks of memory beside those of their scripts, rehearsed."""
    table = Table("published", "GiB", "rehearsed, GiB", "off")
    errors = []
    seen: dict[tuple[object, ...], Recording] = {}
    for one in _PEAKS:
        key = one.script, one.words, one.ranks
        if key not in seen:
            is_expandable = one.reading == "expanding"
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{is_expandable}"
            seen[key], _ = rehearse(
                python, one.script, tuple(one.words.split()), ranks=one.ranks, device=one.device
            )
        found = seen[key].rehearsal
        assert found is not None
        held = found.peak_bytes if one.reading == "allocated" else found.reserved_bytes
        gib = (held or 0) / 2**30 + one.context_gib
        errors.append(gib / one.gib - 1)
        table.add_row(one.source, f"{one.gib:.1f}", f"{gib:.1f}", f"{errors[-1]:+.1%}")
    console = Console()
    console.print(table)
    mean, worst = np.mean(np.abs(errors)), np.max(np.abs(errors))
    console.print(f"mean of the errors' sizes {mean:.1%}, worst {worst:.1%}")


if __name__ == "__main__":
    main()
