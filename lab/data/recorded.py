"""Public steps of image networks on GPUs, and the recordings on a processor that stand for them.

The scripts that made the tables are re-made by ``tests/zoo/published_images.py``, profiled for
four steps each on a processor (``advisor profile``), and kept as job files
(``advisor predict --save-job``) beside the tables, so that nobody has to record them again:

    pip install torchvision timm
    python -m advisor.lab.data.recorded --runs FOLDER [NAME ...]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor import data as folders
from advisor.ask import JobSpec, SetupRequest
from advisor.collectors import atomic
from advisor.collectors.derive import read_recording
from advisor.errors import ModelError
from advisor.jobs import Job, job_from_spec, write_job
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.load import read_job
from advisor.lab.data.steps import RECORDED
from advisor.lab.frame import ROOT
from advisor.machines import suite_device
from advisor.planners.core import Device, concatenate, select

STEPS: Final = 4  # of a recording: one of them is traced
JOBS: Final = "jobs"
# Names of networks in the table that timm has changed since.
_RENAMED: Final = {
    "jx_nest_tiny": "nest_tiny_jx", "ssl_resnext101_32x4d": "resnext101_32x4d",
}  # fmt: skip
_LOADERS: Final = 8  # of torchvision's loader
_ADD: Final = "aten::add_"
_IMAGE: Final = 224  # side of torchvision's images [pixels]
_SCRIPT: Final = ROOT / "tests" / "zoo" / "published_images.py"  # of the checkout
# What the words of the tables are as flags.
_PRECISIONS: Final = {"fp32": "fp32", "fp16": "fp16", "amp-fp16": "fp16"}
_DOUBLE: Final = {"fp64": "fp64"}  # kept from every fit: what it is asked by is arithmetic alone


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A published step, and the job of its script as a person would ask for it."""

    suite: str
    network: str
    batch: int
    precision: str  # as the table says it
    device: Device
    file: str  # of the measurement
    seconds: float
    # as recorded in two samples on a processor, asked in this batch and precision
    job: Job

    @property
    def family(self) -> str:
        """Networks that are variations of one another."""
        return family_of(self.network)

    @property
    def machine(self) -> str:
        """Whose machine and software it was: a folder of torchvision's files, a file of timm's."""
        return self.file.rpartition("/")[0] if self.suite == "torchvision" else self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class LentStep:
    """A step that we measured on a lent GPU, and the job of its script."""

    name: str
    device: Device
    seconds: float
    job: Job


def family_of(network: str) -> str:
    """Return which networks are variations of one another.

    >>> family_of("wide_resnet50_2") == family_of("seresnext50_32x4d") == "resnet"
    True
    >>> family_of("deit_small_patch16_224")
    'vit'
    """
    plain = network.lower()
    return next((f for f, words in _FAMILIES if any(w in plain for w in words)), plain[:5])


_FAMILIES: Final = (
    ("mobilevit", ("mobilevit", "edgenext")), ("vit", ("vit", "deit", "beit", "volo", "xcit")),
    ("swin", ("swin", "nest_")), ("densenet", ("densenet",)), ("vgg", ("vgg",)),
    ("mobilenet", ("mobilenet", "mnasnet", "efficientnet", "mixnet", "hardcore", "rexnet")),
    ("shufflenet", ("shufflenet",)), ("squeezenet", ("squeezenet",)),
    ("inception", ("inception", "pnasnet")), ("darknet", ("darknet", "selecsls")),
    ("mlp", ("mlp", "mixer")), ("coat", ("coat", "crossvit")),
    ("resnet", ("resne", "res2ne", "dla", "hrnet", "regnet", "nfnet", "senet")),
)  # fmt: skip


def recorded_steps(
    data: Path, jobs: Callable[[str], Job | None] | None = None
) -> list[RecordedStep]:
    """Return the published steps whose script is among the recorded ones.

    Channels last is not asked: no flag says it. Raises ModelError if a table or a job file cannot
    be read.

    ``jobs``: of each script's name, by default the stored ones.
    """
    known = jobs or recorded_job
    return [*_torchvision(data, known, _PRECISIONS), *_timm(data, known)]


def double_steps(data: Path) -> list[RecordedStep]:
    """Return the published steps in double precision of the recorded scripts."""
    return list(_torchvision(data, recorded_job, _DOUBLE))


def _torchvision(
    data: Path, jobs: Callable[[str], Job | None], words: Mapping[str, str]
) -> Iterator[RecordedStep]:
    """Yield the steps of torchvision's networks: no update is timed, fp16 is stored in 16 bits."""
    rows = RECORDED.read("torchvision", data)
    rows = rows[(rows["accelerators"] == 1) & rows["precision"].isin(list(words))]
    for row in rows.to_dict("records"):
        setup = SetupRequest(weights="bf16" if row["precision"] == "fp16" else None)
        yield from _asked("torchvision", row, setup, jobs, has_update=False, loads=True)


def _timm(data: Path, jobs: Callable[[str], Job | None]) -> Iterator[RecordedStep]:
    rows = RECORDED.read("timm", data)
    rows = rows[(rows["memory_format"] == "nchw") & rows["precision"].isin(list(_PRECISIONS))]
    for row in rows.to_dict("records"):
        yield from _asked("timm", row, SetupRequest(), jobs, has_update=True)


def _asked(
    suite: str, row: Mapping[Hashable, object], setup: SetupRequest,
    jobs: Callable[[str], Job | None], *, has_update: bool, loads: bool = False,
) -> Iterator[RecordedStep]:  # fmt: skip
    network, device = str(row["network"]), suite_device(str(row["accelerator"]))
    name = f"{suite}-{network}-b2"
    job, recorded = jobs(name), recorded_job(name)
    if device is None or job is None or recorded is None:
        return
    job = zeroing(job if has_update else _without_update(job), recorded)
    if loads:
        job = _loading(job, _IMAGE)
    batch, precision = int(str(row["batch"])), str(row["precision"])
    spec = JobSpec(batch=batch, precision=(_PRECISIONS | _DOUBLE)[precision])
    yield RecordedStep(
        suite=suite, network=network, batch=batch, precision=precision,
        device=device, file=str(row["file"]), seconds=float(str(row["step_s"])),
        job=job_from_spec(spec, setup, job=job),
    )  # fmt: skip


def _loading(job: Job, image: int) -> Job:
    """Return a job whose script takes images from a loader, as the words of its suite say."""
    assert job.work is not None
    work = replace(job.work, input_bytes_per_sample=4.0 * 3 * image**2, loaders=_LOADERS)
    return replace(job, work=work)


def zeroing(job: Job, recorded: Job) -> Job:
    """Return a job whose script zeroes its gradients, as ``zero_grad`` did before PyTorch 2.

    Today's drops them instead. A recording of a script that zeroes has a call for every tensor
    that learns, and another that adds the new gradient to the zeros; of a script that does not,
    the update of ``recorded``, plain or with momentum, has one for each of the same tensors.
    """
    assert job.work is not None
    assert recorded.work is not None
    made = recorded.work.operators
    momentum, plain = ((made.name == name) & made.is_update for name in ("aten::mul_", _ADD))
    each = select(made, momentum if momentum.any() else plain)
    size = each.fixed_bytes / (2 if momentum.any() else 3)  # each tensor read, and written
    zeroed = replace(
        each, name=np.full_like(each.name, "aten::zero_"), flop=0 * size,
        bytes=2 * size, fixed_bytes=2 * size, listed=np.full_like(size, np.nan),
    )  # fmt: skip
    added = replace(
        zeroed, name=np.full_like(each.name, _ADD), phase=np.full_like(each.phase, "backward"),
        kind=np.full_like(each.kind, "elementwise"), bytes=3 * size, fixed_bytes=3 * size,
    )  # fmt: skip
    operators = concatenate([job.work.operators, added, zeroed])
    return replace(job, work=replace(job.work, operators=operators))


def _without_update(job: Job) -> Job:
    assert job.work is not None
    made = job.work.operators
    return replace(job, work=replace(job.work, operators=select(made, ~made.is_update)))


@cache
def recorded_job(name: str) -> Job | None:
    """Return a stored job, as it was recorded with today's software; None if not stored.

    Raises ModelError if the file cannot be read.
    """
    return _stored(_folder() / f"{name}.json.gz")


@cache
def rehearsed_job(name: str) -> Job | None:
    """Return the job of the same script rehearsed in place of recorded; None if not stored.

    Raises ModelError if the file cannot be read.
    """
    return _stored(_folder() / f"{name}-rehearsed.json.gz")


def _stored(path: Path) -> Job | None:
    if not path.exists():
        return None
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ModelError(f"cannot read {path}: {error}", hint="record it again") from error
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "job.json"
        atomic.write_bytes(plain, text)
        return read_job(plain)


def lent_steps() -> Iterator[LentStep]:
    """Yield the scripts that ran on a lent GPU, as recorded or rehearsed where there was none.

    Raises ModelError if a job file cannot be read.
    """
    folder = folders.root("datasets") / "gpu_runs"
    for record in sorted(folder.glob("*/record.jsonl")):
        parts = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
        gpu = next((one["gpu"] for one in parts if one["part"] == "machine"), "")
        device = suite_device(gpu)
        for one in parts:
            kind, _, rest = one["part"].partition("/")
            name = rest.removesuffix("/gpu")
            if device is None or name == rest or kind not in ("zoo", "rehearsed"):
                continue
            file = f"{kind}-{name.removesuffix('.py')}.json.gz"
            job = _stored(record.parent / JOBS / file)
            if job is not None:
                seconds = float(one["measured"]["step_s"])
                yield LentStep(name=one["part"], device=device, seconds=seconds, job=job)


def stored_jobs() -> list[str]:
    """Return the names of the stored jobs: suite, network, and the batch that was recorded."""
    names = sorted(path.name.removesuffix(".json.gz") for path in _folder().glob("*.json.gz"))
    return [name for name in names if not name.endswith("-rehearsed")]


def _folder() -> Path:
    return folders.root("datasets") / "measurements" / RECORDED.name / JOBS


# Recording them again.


def record(
    name: str, image: int, runs: Path, *, python: str = sys.executable, rehearse: bool = False
) -> Job:
    """Profile one script, ``suite-network-bBATCH``, for a few steps, and return its job."""
    suite, _, rest = name.partition("-")
    network, _, batch = rest.rpartition("-b")
    words = [f"{suite}:{_RENAMED.get(network, network)}", "--batch", batch, "--image", str(image)]
    words += ["--momentum", "0.9"] if suite == "timm" else []
    folder = Path(tempfile.mkdtemp(dir=runs))
    subprocess.run(
        [sys.executable, "-m", "advisor.cli", "profile", "--quiet", "--steps", str(STEPS),
         "--rehearse" if rehearse else "--no-rehearse", "--runs", str(folder), "--", python,
         str(_SCRIPT), *words],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return job_from_recording(read_recording(next(folder.iterdir())))


def keep(name: str, job: Job, folder: Path | None = None) -> None:
    """Store a job without its layers, which no step on one device asks for; always the same bytes.

    Without layers a transformer that was recognised would be taken for a described one: it is left
    out, too.
    """
    assert job.work is not None
    job = replace(job, name=name, work=replace(job.work, layers=(), transformer=None))
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "job.json"
        write_job(job, plain)
        text = json.dumps(json.loads(plain.read_text("utf-8")), separators=(",", ":"))
    packed = gzip.compress(text.encode(), 9, mtime=0)
    atomic.write_bytes((folder or _folder()) / f"{name}.json.gz", packed)


def image_sizes(data: Path) -> dict[str, int]:
    """Return the side of the images of every network of timm's table [pixels]."""
    rows: pd.DataFrame = RECORDED.read("timm", data)
    return {str(n): int(i) for n, i in zip(rows["network"], rows["image"], strict=True)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the named scripts, or all that are stored, and store their jobs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="SUITE-NETWORK-bBATCH")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the recordings")
    asked = parser.parse_args(arguments)
    asked.runs.mkdir(parents=True, exist_ok=True)
    sizes = image_sizes(folders.measurements(None))
    for name in asked.names or stored_jobs():
        network = name.partition("-")[2].rpartition("-b")[0]
        image = sizes.get(network, 224) if name.startswith("timm") else 224
        keep(name, record(name, image, asked.runs))
        sys.stderr.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
