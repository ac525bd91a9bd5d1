"""Everything worth measuring on a machine with a GPU, and what the advisor says of it beforehand.

One command, stopped and started again at will; then, on any machine, what is said of that GPU:

python -m advisor.lab.speed.on_gpu --out gpu_runs --minutes 14
python -m advisor.lab.speed.on_gpu --out gpu_runs --gpu "NVIDIA H100 80GB HBM3"

Measured: the device sheet; three transformers in bf16 and fp32, eager and compiled, with the peak
of their memory, and two of them under ``advisor profile``; scripts of the zoo, and scripts that
want a GPU, under ``advisor profile``; how fast data loaders deliver. Said: every transformer's
step and memory, described; every script of the zoo's, recorded on a processor; every other
script's, rehearsed. Each part is a line of ``record.jsonl`` as soon as it is done;
``summary.json`` sets said beside measured. What is in the record is not run again: on a machine
that keeps nothing, name the earlier record with ``--resume``. Keep a finished folder as
``datasets/gpu_runs/MACHINE``.

Where there is no GPU (or with ``--dry``) the sizes are small and the processor takes its place, so
that all of it can be tried.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from advisor.collectors.derive.read import recording
from advisor.collectors.watch.host import cpu_model, usable_cpus
from advisor.lab import frame
from advisor.lab.experiments import rehearsal, zoo

STEP: Final = Path(__file__).with_name("gpu_step.py")
# Of the zoo: those that use a GPU where there is one.
SCRIPTS: Final = (
    "digits_classifier.py", "vae.py", "word_rnn.py", "nano_gpt.py", "gan.py", "imagenet_style.py",
    "transformer_amp.py", "loader_workers.py",
)  # fmt: skip
# Words that make a script use the GPU, where it does not by itself.
_USES_GPU: Final = {"vae.py": ("--accel",)}
# Of ``tests/zoo/gpu``: those of one device, in torch and packages that are often there.
REHEARSED: Final = (
    "mnist", "vit_ema", "dcgan", "char_model", "word_model", "vae", "llama", "lora",
    "checkpointed", "whisper", "bert_classifier", "recommender", "moe", "diffusion_unet",
    "detector", "ctc_speech", "gcn", "gnn_scatter", "wgan_gp", "ppo", "dqn", "siamese",
    "super_resolution", "early_stopping", "accelerate_fp16", "is_available_assert", "masks",
    "unet_memory", "bert_large", "imagenet_dummy", "lightning_fsdp", "hf_trainer_7b", "nano_gpt",
)  # fmt: skip
# layers, hidden, heads, sequence, batch: GPT-2 small, medium and XL's shapes; small ones to try.
SIZES: Final = ((12, 768, 12, 1024, 8), (24, 1024, 16, 1024, 8), (48, 1600, 25, 1024, 4))
_DRY_SIZES: Final = ((1, 32, 2, 16, 2), (2, 32, 2, 16, 2), (2, 64, 2, 16, 2))
_WORKERS: Final = (0, 2, 8, 16)
# Of what is said, and of what is measured on a machine that may be lent by the minute.
_SAID_TIMEOUT_S, _MEASURED_TIMEOUT_S = 240.0, 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A measurement: its name in the record, and what makes it."""

    name: str
    run: Callable[[], dict[str, Any]]


class Record:
    """What was measured so far: a JSON line a part, kept as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the parts that succeeded; a line cut off by the end of a run is passed over."""
        found: dict[str, dict[str, Any]] = {}
        if not self.path.exists():
            return found
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                part = json.loads(line)
                if not part.get("error"):
                    found[part["part"]] = part
            except (ValueError, KeyError, AttributeError):
                continue
        return found

    def add(self, part: dict[str, Any]) -> None:
        """Append a part; on its own line even after one that was cut off."""
        with self.path.open("a+", encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(file.tell() - 1)
                if file.read(1) != "\n":
                    file.write("\n")
            file.write(json.dumps(part) + "\n")
            file.flush()
            os.fsync(file.fileno())


def measure(
    parts: Sequence[Part], record: Record, *, until_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:  # fmt: skip
    """Make the parts that the record lacks, until the time is up; return those still lacking.

    A part that fails is noted with its error, and tried again by the next run.
    """
    done = record.read()
    left = []
    for part in parts:
        if part.name in done:
            continue
        begin = clock()
        if begin >= until_s:
            left.append(part.name)
            continue
        try:
            found: dict[str, Any] = part.run()
        except (RuntimeError, ValueError, KeyError, OSError, subprocess.SubprocessError) as error:
            found = {"error": f"{type(error).__name__}: {str(error)[-400:]}"}
            left.append(part.name)
        took = {"took_s": round(clock() - begin, 1)}
        record.add(
            {
                "part": part.name,
                "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                **took,
                **found,
            }
        )
        print(f"{part.name:44} {took['took_s']:6.1f} s  {_short(found)}", flush=True)
    return left


_Run = Callable[[], dict[str, Any]]


def parts(folder: Path, gpu: str | None, *, seconds: float) -> Iterator[Part]:
    """Yield everything to measure, what is wanted most first, then what is said of it.

    ``folder``: where the advisor's recordings are kept meanwhile; ``gpu``: the GPU as the driver
    names it; None to try on the processor; ``seconds``: to profile a script for [s].
    """
    yield Part(name="machine", run=lambda: machine(gpu))
    yield Part(name="device sheet", run=lambda: _said(folder, "doctor", "--device-sheet"))
    steps = _steps(gpu)
    asked: dict[str, tuple[_Run, _Run]] = {
        f"step/{name}": (partial(step, *one), partial(described, folder, gpu, *one))
        for name, one in steps.items()
    } | _scripts(folder, gpu, seconds)
    for name, (measured, _) in sorted(asked.items(), key=lambda one: "compiled" in one[0]):
        yield Part(name=f"{name}/gpu", run=measured)
    for name in list(steps)[:2]:
        yield Part(name=f"profiled/{name}", run=partial(profiled, folder, *steps[name]))
    for workers in _WORKERS:
        loader = partial(_measured, "loader", "--workers", str(workers))
        yield Part(name=f"loader/{workers}", run=loader)
    for name, (_, said) in asked.items():
        yield Part(name=f"{name}/said", run=said)


def _steps(gpu: str | None) -> dict[str, tuple[Sequence[int], str, str]]:
    """Return sizes, precision and kernels of the transformers, by name."""
    return {
        f"{sizes[0]}x{sizes[1]}/{precision}/{kernels}": (sizes, precision, kernels)
        for kernels in ("eager", "compiled")
        for precision in ("bf16", "fp32")
        for sizes in (SIZES if gpu else _DRY_SIZES)
    }


def _scripts(folder: Path, gpu: str | None, seconds: float) -> dict[str, tuple[_Run, _Run]]:
    """Return how each script is measured, and how it is said, by name."""
    known = {one.path.name: one for one in zoo.scripts()}
    found: dict[str, tuple[_Run, _Run]] = {}
    for name in SCRIPTS:
        words = (*known[name].words, *(_USES_GPU.get(name, ()) if gpu else ()))
        found[f"zoo/{name}"] = (
            partial(script, folder / name / "gpu", words, seconds),
            partial(recorded, known[name], gpu, folder / name / "cpu", seconds),
        )
    for name in REHEARSED if gpu else ():
        path = rehearsal.SCRIPTS / f"{name}.py"
        found[f"rehearsed/{name}"] = (
            partial(script, folder / name / "gpu", (str(path),), seconds),
            partial(rehearsed, path, gpu, folder / name / "rehearsed"),
        )
    return found


def machine(gpu: str | None) -> dict[str, Any]:
    """Return what the machine is, and the software that computes on it."""
    import torch

    return {
        "gpu": gpu, "cpu_model": cpu_model(), "usable_cpus": usable_cpus(),
        "torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0],
    }  # fmt: skip


def step(sizes: Sequence[int], precision: str, kernels: str) -> dict[str, Any]:
    """Measure a transformer's step and the peak of its memory."""
    return _measured(*_step_words(sizes, precision, kernels))


def described(
    folder: Path, gpu: str | None, sizes: Sequence[int], precision: str, kernels: str
) -> dict[str, Any]:
    """Say a transformer's step and memory from its description."""
    seen = _said(
        folder, "predict", *_size_words(sizes), "--vocabulary", "32000", "--precision", precision,
        "--kernels", kernels, "--micro-batch", str(sizes[-1]), "--total-steps", "1000",
        *_where(gpu),
    )  # fmt: skip
    return _step_of(seen)


def profiled(
    folder: Path, sizes: Sequence[int], precision: str, kernels: str
) -> dict[str, Any]:  # fmt: skip
    """Profile a transformer that times its own steps: what it says is the truth here."""
    words = (str(STEP), *_step_words(sizes, precision, kernels))
    done = _run(folder, [*frame.ADVISOR, "profile", "--quiet", "--json", *words])
    own, seen = (json.loads(line) for line in done.stdout.strip().splitlines()[-2:])
    time_s = seen["step_time"]
    bounds = {"value": time_s["corrected_s"], "low": time_s["low_s"], "high": time_s["high_s"]}
    return {"measured": own, "said": {"step_s": bounds, "memory_gib": None}}


def script(folder: Path, words: Sequence[str], seconds: float) -> dict[str, Any]:
    """Profile a script where it runs: its step, and the GPU's memory as the driver has it."""
    seen = _said(
        folder, "profile", "--quiet", "--no-rehearse", "--for", f"{seconds:g}s", *words,
        timeout_s=_MEASURED_TIMEOUT_S,
    )  # fmt: skip
    if not seen.get("step_time"):
        raise RuntimeError(f"no step: {seen.get('stop_reason')} {seen.get('not_known')}")
    used = [r.gpu_memory_bytes for r in recording(Path(seen["path"])).readings]
    on_gpu = [one for one in used if one is not None]
    step_time, deep = seen["step_time"], seen.get("deep_step") or {}
    kept = ("corrected_s", "raw_s", "low_s", "high_s", "steps", "clock", "delay_fraction")
    return {
        "measured": {
            "step_s": step_time["corrected_s"],
            "used_bytes": max(on_gpu, default=None),
            "idle_bytes": on_gpu[0] if on_gpu else None,
        },
        "step_time": {name: step_time[name] for name in kept},
        "deep_step": {name: deep.get(name) for name in ("device", "precision", "samples")},
    }


def recorded(
    one: zoo.Script, gpu: str | None, folder: Path, seconds: float
) -> dict[str, Any]:  # fmt: skip
    """Record a script on the processor, and say its step on the GPU."""
    if one.missing:
        raise RuntimeError(f"needs {', '.join(one.missing)}")
    seen = _said(
        folder, "profile", "--quiet", "--for", f"{seconds:g}s", *one.words, CUDA_VISIBLE_DEVICES=""
    )
    here = {"here": {"step_s": (seen.get("step_time") or {}).get("corrected_s")}}
    return here | _asked(folder, gpu, one.steps)


def rehearsed(path: Path, gpu: str | None, folder: Path) -> dict[str, Any]:
    """Rehearse a script that wants a GPU, and say its step there."""
    _said(folder, "profile", "--quiet", "--rehearse", str(path), CUDA_VISIBLE_DEVICES="")
    return _asked(folder, gpu, 1000)


def _asked(folder: Path, gpu: str | None, steps: int) -> dict[str, Any]:
    """Return what is said of the latest run in a folder."""
    words = ("predict", *_where(gpu), "--total-steps", str(steps))
    return _step_of(_said(folder, *words, CUDA_VISIBLE_DEVICES=""))


def _step_of(answer: dict[str, Any]) -> dict[str, Any]:
    return {"said": {"step_s": answer["step_time_s"], "memory_gib": answer["memory_gib"]}}


def _where(gpu: str | None) -> tuple[str, str]:
    return ("--gpu", gpu) if gpu else ("--on", "here")


def _size_words(sizes: Sequence[int]) -> list[str]:
    names = ("layers", "hidden", "heads", "sequence", "batch")
    return [
        word
        for name, value in zip(names, sizes, strict=True)
        for word in (f"--{name}", str(value))
    ]


def _step_words(sizes: Sequence[int], precision: str, kernels: str) -> list[str]:
    compiled = ["--compile"] if kernels == "compiled" else []
    return ["step", *_size_words(sizes), "--precision", precision, *compiled]


def _said(
    folder: Path, verb: str, *words: str, timeout_s: float = _SAID_TIMEOUT_S, **environment: str
) -> dict[str, Any]:
    """Return what a verb of this checkout's advisor prints as JSON."""
    command = [*frame.ADVISOR, verb, "--json", *words]
    done = _run(folder, command, timeout_s=timeout_s, **environment)
    # A recorded script prints first; a record may take many lines.
    lines = done.stdout.strip().splitlines()
    for text in (done.stdout, lines[-1] if lines else ""):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise RuntimeError(f"advisor {verb}: exit {done.returncode}: {done.stderr.strip()[-300:]}")


def _measured(*words: str) -> dict[str, Any]:
    """Return what ``gpu_step.py`` prints, in a process of its own."""
    done = _run(None, [sys.executable, str(STEP), *words])
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return {"measured": json.loads(done.stdout.strip().splitlines()[-1])}


def _run(
    folder: Path | None, command: Sequence[str], *, timeout_s: float = _SAID_TIMEOUT_S,
    **environment: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command in a folder that keeps its runs; when its time is up, end all it started."""
    own = {}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        own = zoo.environment_of(folder / "runs")
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def summary(done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return said beside measured, and the median errors by what was asked."""
    rows = []
    for name, part in sorted(done.items()):
        truth = done.get(name.removesuffix("/said") + "/gpu", part)
        measured, said = truth.get("measured"), part.get("said")
        if not measured or not said or not measured.get("step_s"):
            continue
        bounds, true_s = said["step_s"], measured["step_s"]
        peak = measured.get("peak_bytes") or measured.get("used_bytes")
        memory_gib = said["memory_gib"]
        rows.append(
            {"part": name.removesuffix("/said"), "measured_s": true_s, "said_s": bounds["value"],
             "ratio": bounds["value"] / true_s,
             "is_inside": bounds["low"] <= true_s <= bounds["high"],
             "memory_ratio": memory_gib * 2**30 / peak if peak and memory_gib else None}
        )  # fmt: skip
    return {"schema_version": 1, "machine": done.get("machine"), "rows": rows,
            "errors": {kind: _errors([r for r in rows if r["part"].startswith(kind)])
                       for kind in ("step", "profiled", "zoo", "rehearsed")}}  # fmt: skip


def _errors(rows: list[dict[str, Any]]) -> dict[str, float] | None:
    if not rows:
        return None
    off = [abs(row["ratio"] - 1.0) for row in rows]
    return {
        "rows": len(rows),
        "median_ape": statistics.median(off),
        "mape": statistics.fmean(off),
        "bias": math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows)),
        "coverage": statistics.fmean(row["is_inside"] for row in rows),
    }


def driver_name() -> str | None:
    """Return the first GPU's name as PyTorch has it, None where there is none."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _short(found: dict[str, Any]) -> str:
    text = found.get("error") or json.dumps(found.get("measured", {}))
    return str(text)[:120]


def main() -> None:
    """Measure what the record lacks and write the summary; exit 3 where something is left."""
    options = frame.options(__doc__, {
        "--out": {"type": Path, "required": True, "help": "folder for record and summary"},
        "--minutes": (28.0, "start no part after these"),
        "--seconds": (8.0, "to profile each script for"),
        "--resume": (Path, "an earlier record.jsonl to go on from"),
        "--dry": (False, "small sizes, on the processor"),
        "--only": ("", "parts whose names hold this"),
        "--gpu": ("", "measure nothing: say of this GPU what the record holds of it"),
    })  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    record = Record(options.out / "record.jsonl")
    if options.resume is not None and not record.path.exists():
        shutil.copyfile(options.resume, record.path)
    gpu = options.gpu or (None if options.dry else driver_name())
    wanted = [
        part
        for part in parts(options.out.resolve() / "runs", gpu, seconds=options.seconds)
        if options.only in part.name
    ]
    if options.gpu:
        known = record.read()
        said = {name.removesuffix("/gpu") + "/said" for name in known if name.endswith("/gpu")}
        wanted = [one for one in wanted if one.name in said]
    left = measure(wanted, record, until_s=time.monotonic() + 60 * options.minutes)
    found = summary(record.read())
    frame.write_json(options.out / "summary.json", found)
    print(json.dumps(found["errors"], indent=1))
    print(f"left: {', '.join(left) or 'nothing'}")
    sys.exit(3 if left else 0)


if __name__ == "__main__":
    main()
