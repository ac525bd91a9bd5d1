"""Everything worth measuring on a machine with a GPU, and what the advisor says of it beforehand.

One command, half an hour at most, stopped and started again at will:

python -m advisor.lab.speed.on_gpu --out gpu_runs --minutes 28

Measured: the device sheet; twelve scripts of the zoo on the GPU and on the machine's processor;
three transformers in bf16 and fp32, eager and compiled, with the peak of their memory; how fast
data loaders deliver. Said: every script's step on the GPU, from its recording on the processor
alone; every transformer's step and memory, described. Each part is a line of ``record.jsonl`` as
soon as it is done, ``summary.json`` sets said beside measured. What is in the record is not run
again: on a machine that keeps nothing, name the earlier record with ``--resume``. Keep a finished
folder as ``datasets/gpu_runs/MACHINE``.

Where there is no GPU (or with ``--dry``) the sizes are small and the processor takes its place, so
that all of it can be tried.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.collectors.watch.host import cpu_model, usable_cpus
from advisor.lab import frame
from advisor.lab.experiments import zoo

STEP: Final = Path(__file__).with_name("gpu_step.py")
# Of the zoo, with torch and scikit-learn alone, on one device, in the frameworks' own words.
SCRIPTS: Final = (
    "digits_classifier.py", "epochs_break.py", "gan.py", "imagenet_style.py", "lbfgs_sine.py",
    "loader_workers.py", "nano_gpt.py", "notebook_export.py", "transformer_amp.py", "vae.py",
    "word_rnn.py", "hf_trainer.py",
)  # fmt: skip
# Words that make a script use the GPU, where it does not by itself.
_USES_GPU: Final = {"vae.py": ("--accel",)}
# layers, hidden, heads, sequence, batch: GPT-2 small, medium and XL's shapes; small ones to try.
SIZES: Final = ((12, 768, 12, 1024, 8), (24, 1024, 16, 1024, 8), (48, 1600, 25, 1024, 4))
_DRY_SIZES: Final = ((1, 32, 2, 16, 2), (2, 32, 2, 16, 2), (2, 64, 2, 16, 2))
_WORKERS: Final = (0, 2, 8, 16)
_PART_TIMEOUT_S: Final = 240.0


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


def parts(folder: Path, gpu: str | None, *, seconds: float) -> Iterator[Part]:
    """Yield everything to measure, what others need first.

    ``folder``: where the advisor's recordings are kept meanwhile; ``gpu``: the GPU as the driver
    names it; None to try on the processor; ``seconds``: to profile a script for [s].
    """
    yield Part(name="machine", run=lambda: machine(gpu))
    yield Part(name="device sheet", run=lambda: _said(folder, "doctor", "--device-sheet"))
    for layers, hidden, heads, sequence, batch in SIZES if gpu else _DRY_SIZES:
        sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": sequence,
                 "batch": batch}  # fmt: skip
        for precision in ("bf16", "fp32"):
            for kernels in ("eager", "compiled"):
                given = (sizes, precision, kernels, gpu, folder)
                yield Part(
                    name=f"step/{layers}x{hidden}/{precision}/{kernels}",
                    run=lambda given=given: step(*given),
                )
    known = {script.path.name: script for script in zoo.scripts()}
    for name in SCRIPTS:
        for place in ("cpu", "gpu") if gpu else ("cpu",):
            yield Part(
                name=f"zoo/{name}/{place}",
                run=lambda given=(known[name], place, gpu, folder / name / place, seconds): script(
                    *given
                ),
            )
    for workers in _WORKERS:
        yield Part(
            name=f"loader/{workers}",
            run=lambda workers=workers: _measured("loader", "--workers", str(workers)),
        )


def machine(gpu: str | None) -> dict[str, Any]:
    """Return what the machine is, and the software that computes on it."""
    import torch

    return {
        "gpu": gpu, "cpu_model": cpu_model(), "usable_cpus": usable_cpus(),
        "torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0],
    }  # fmt: skip


def step(
    sizes: dict[str, int], precision: str, kernels: str, gpu: str | None, folder: Path
) -> dict[str, Any]:
    """Measure a described transformer's step, and say it beforehand."""
    numbers = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    where = ("--gpu", gpu) if gpu else ("--on", "here")
    said = _said(
        folder, "predict", *numbers, "--vocabulary", "32000", "--precision", precision,
        "--kernels", kernels, "--micro-batch", str(sizes["batch"]), "--total-steps", "1000",
        *where,
    )  # fmt: skip
    compiled = ("--compile",) if kernels == "compiled" else ()
    return {
        "measured": _measured("step", *numbers, "--precision", precision, *compiled),
        "said": {"step_s": said["step_time_s"], "memory_gib": said["memory_gib"]},
    }


def script(
    one: zoo.Script, place: str, gpu: str | None, folder: Path, seconds: float
) -> dict[str, Any]:
    """Profile a script on one of the machine's devices; from the processor, say it of the GPU."""
    if one.missing:
        return {"left_out": f"needs {', '.join(one.missing)}"}
    folder.mkdir(parents=True, exist_ok=True)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if place == "cpu" else {}
    words = (*one.words, *(_USES_GPU.get(one.path.name, ()) if place == "gpu" else ()))
    seen = _said(folder, "profile", "--quiet", "--for", f"{seconds:g}s", *words, **hidden)
    found: dict[str, Any] = {"measured": {"step_s": (seen.get("step_time") or {})["corrected_s"]}}
    if place == "cpu":
        where = ("--gpu", gpu) if gpu else ("--on", "here")
        length = ("--total-steps", str(one.steps))
        said = _said(folder, "predict", *where, *length, **hidden)
        found["said"] = {"step_s": said["step_time_s"], "memory_gib": said["memory_gib"]}
    return found


def _said(folder: Path, verb: str, *words: str, **environment: str) -> dict[str, Any]:
    """Return what a verb of this checkout's advisor prints as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*frame.ADVISOR, verb, "--json", *words],
        cwd=folder, env={**os.environ, **zoo.environment_of(folder / "runs"), **environment},
        capture_output=True, text=True, timeout=_PART_TIMEOUT_S, check=False,
    )  # fmt: skip
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
    done = subprocess.run(
        [sys.executable, str(STEP), *words], capture_output=True, text=True,
        timeout=_PART_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def summary(done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return said beside measured, and the median errors by what was asked."""
    rows = []
    for name, part in sorted(done.items()):
        where = name.rpartition("/")[0] + "/gpu"
        truth = part if name.startswith("step/") else done.get(where, part)
        measured, said = truth.get("measured"), part.get("said")
        if not measured or not said or not measured.get("step_s"):
            continue
        bounds, true_s = said["step_s"], measured["step_s"]
        peak = measured.get("peak_bytes")
        rows.append(
            {"part": name, "measured_s": true_s, "said_s": bounds["value"],
             "ratio": bounds["value"] / true_s,
             "is_inside": bounds["low"] <= true_s <= bounds["high"],
             "memory_ratio": said["memory_gib"] * 2**30 / peak if peak else None}
        )  # fmt: skip
    return {"schema_version": 1, "machine": done.get("machine"), "rows": rows,
            "errors": {kind: _errors([r for r in rows if r["part"].startswith(kind)])
                       for kind in ("step", "zoo")}}  # fmt: skip


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
    text = found.get("error") or found.get("left_out") or json.dumps(found.get("measured", {}))
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
    })  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    record = Record(options.out / "record.jsonl")
    if options.resume is not None and not record.path.exists():
        shutil.copyfile(options.resume, record.path)
    gpu = None if options.dry else driver_name()
    wanted = [
        part
        for part in parts(options.out / "runs", gpu, seconds=options.seconds)
        if options.only in part.name
    ]
    left = measure(wanted, record, until_s=time.monotonic() + 60 * options.minutes)
    found = summary(record.read())
    frame.write_json(options.out / "summary.json", found)
    print(json.dumps(found["errors"], indent=1))
    print(f"left: {', '.join(left) or 'nothing'}")
    sys.exit(3 if left else 0)


if __name__ == "__main__":
    main()
