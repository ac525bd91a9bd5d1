"""Hostile input for every reader: an answer or the project's own error, within a second and a GiB.

    python -m advisor.lab.speed.fuzz                          # 2,000 inputs a reader: seconds
    python -m advisor.lab.speed.fuzz --inputs 500000 --corpus FOLDER   # nightly: ten million

Seeds are the examples of ``docs/formats.md`` and what the program writes itself. Where atheris is
installed (``pip install atheris``) it looks for inputs that reach new lines and keeps them in
``--corpus``; else the same mutations are drawn at random. Each reader runs in a process of its
own; what it could not refuse properly is written beside the corpus and printed, and the exit code
is 1.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from advisor.collectors.errors import RecordingError
from advisor.errors import AdvisorError
from advisor.lab import frame
from advisor.planners.core.errors import PlanningError

OURS: Final = (AdvisorError, PlanningError, RecordingError)
LONGEST_S: Final = 1.0  # of processor time, for one input
MOST_BYTES: Final = 1 << 30  # that one input may add to the process
LEAST: Final = 4096  # bytes that an input may have, or a quarter more than the largest seed
# What nobody should write for a number, a name, a separator.
NASTY: Final = (
    b"", b"0", b"-1", b"1e308", b"1e999", b"nan", b"inf", b"-0.0", b"null", b"true", b"[]", b"{}",
    b'""', b'"x"', b"[[1]]", b"9" * 40, b"9" * 400, b"1" + b"0" * 39, b"\x00", b"\xff\xfe",
    b",", b",,", b"|", b"\n", b"\r\n", b'"', b"=", b":", b"x", b"*", b"../x", b"2026-02-30",
    b"0001-01-01", b"9999-12-31T23:59:59Z", b"1h", b"1e9d", b"%s", b"${HOME}", b"\x1b[2J",
)  # fmt: skip
_TOKEN: Final = re.compile(rb"\d[\d.eE+-]*|\w+|\s+|[^\w\s]", re.ASCII)
# What atheris watches: the rooms that read; numpy's and the ground's equations are not parsers.
WATCHED: Final = (
    "advisor.collectors.bounded", "advisor.collectors.format", "advisor.records", "advisor.ask",
    "advisor.jobs", "advisor.machines.cluster", "advisor.catalogue.overrides",
    "advisor.catalogue.tables", "advisor.gate", "advisor.quantities",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader with the inputs that it is for."""

    read: Callable[[Path], object]
    suffix: str
    seeds: tuple[bytes, ...]

    @property
    def most_bytes(self) -> int:
        """Return how large an input may be: what is wrong with a file shows in a small one."""
        return max(LEAST, *(len(seed) * 5 // 4 for seed in self.seeds))


def examples(page: str) -> dict[str, bytes]:
    """Return the files that a page shows, by title."""
    text = (frame.ROOT / "docs" / page).read_text(encoding="utf-8")
    fences = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    return {name: content.encode() for name, content in fences}


@cache
def catalogue() -> Any:
    """Return the packaged catalogue, read once a process."""
    from advisor.catalogue import Catalogue

    return Catalogue.load()


def written_jobs() -> list[bytes]:
    """Return job files as ``--save-job`` writes them: of a described model and of a recording."""
    from advisor.ask import JobSpec
    from advisor.jobs import job_from_spec, write_job

    described = JobSpec(layers=2, hidden=64, heads=2, total_steps=10.0)
    run = JobSpec(run=str(frame.ROOT / "tests" / "golden" / "run-schema-1"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        found = []
        for spec in (described, run):
            write_job(job_from_spec(spec), path)
            found.append(path.read_bytes())
        return found


def written_records(table: bytes) -> bytes:
    """Return runs as the store writes them."""
    from advisor.records import write_records
    from advisor.records.formats import read_runs_as

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_bytes(table)
        write_records(path.with_name("runs.jsonl"), read_runs_as("csv", path))
        return path.with_name("runs.jsonl").read_bytes()


def tracked_summary(path: Path) -> object:
    """Read a file as the summary of an exported run of Weights & Biases."""
    from advisor.records.formats import read_runs_as

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        run = Path(folder) / "run"
        run.mkdir()
        path.rename(run / "wandb-summary.json")
        return read_runs_as("wandb", Path(folder))


def targets() -> dict[str, Target]:
    """Return every reader of files and texts, by name."""
    from advisor import quantities
    from advisor.ask import read_question, stated
    from advisor.catalogue import parse_gpus
    from advisor.catalogue.overrides import read_rules
    from advisor.gate import read_submission
    from advisor.jobs.describe import read_model
    from advisor.jobs.load import read_job
    from advisor.jobs.runs import read_runs
    from advisor.machines.cluster import parse_cluster, read_cluster
    from advisor.recipes import directives
    from advisor.records import iterate_records
    from advisor.records.formats import read_runs_as
    from advisor.records.importers.job_tables import read_cluster_trace
    from advisor.records.importers.node_shares import read_node_shares
    from advisor.records.traces import read_spot_traces

    shown = examples("formats.md") | examples("prices.md")

    def of(read: Callable[[Path], object], *names: str, more: Sequence[bytes] = ()) -> Target:
        seeds = tuple(shown[name] for name in names) + tuple(more)
        suffix = Path(names[0]).suffix if names else ".json"
        return Target(read=read, suffix=suffix, seeds=seeds)

    def text_of(parse: Callable[[str], object], *seeds: bytes) -> Target:
        read = lambda path: parse(path.read_bytes().decode("utf-8", "replace"))  # noqa: E731
        return Target(read=read, suffix=".txt", seeds=seeds)

    def settings(path: Path) -> object:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            path.rename(Path(folder) / "advisor.toml")
            return stated(Path(folder), {})

    options = b'{"argv": ["train.sbatch"], "gres": "gpu:a100:8", "nodes": 2, "time": "1-00:00:00"}'
    question = (
        b'{"layers": 2, "hidden": 64, "heads": 2, "tokens": "1M", "budget": 50, "gpus": "A100"}'
    )
    model = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100,
             "n_positions": 64, "architectures": ["GPT2LMHeadModel"]}  # fmt: skip
    trainer = {"log_history": [{"step": 1, "loss": 2.5}, {"train_runtime": 10.0, "step": 2}],
               "global_step": 2, "max_steps": 2}  # fmt: skip
    table = b"time_s,run,program,machine,status\n10,a,b,2 x aws:g5.xlarge,ok\n"
    return {
        "job file": of(read_job, more=written_jobs()),
        "question": of(read_question, more=(question,)),
        "settings": Target(read=settings, suffix=".toml", seeds=(b"[recommend]\nbudget = 50\n",)),
        "configuration": of(read_model, more=(json.dumps(model).encode(),)),
        "cluster": of(lambda path: read_cluster(str(path), catalogue()), "cluster.json"),
        "cluster text": text_of(lambda text: parse_cluster(text, catalogue()),
                                b"2x8xA100-80GB:nvlink@200Gbps,4x g2-standard-48"),
        "overrides": of(read_rules, "overrides.csv"),
        "spot": of(read_spot_traces, "spot-counts.csv", "spot-events.csv", "spot-pools.csv"),
        "nodes": of(read_node_shares, "nodes.csv"),
        "jobs": of(read_cluster_trace, "jobs.csv", "sacct.txt", "jobs.json"),
        "runs of a job": of(read_runs, "runs.csv", "team.csv"),
        "records": of(lambda path: list(iterate_records(path)), more=(written_records(table),)),
        "import csv": Target(read=partial(read_runs_as, "csv"), suffix=".csv", seeds=(table,)),
        "import huggingface": of(
            partial(read_runs_as, "huggingface"), more=(json.dumps(trainer).encode(),)
        ),
        "import wandb": of(tracked_summary, more=(b'{"_runtime": 40, "loss": 0.5}',)),
        "submission": of(lambda path: submission(path, read_submission), more=(options,)),
        "batch script": text_of(directives, b"#!/bin/sh\n#SBATCH --gres=gpu:8\n#ADVISOR run=x\n"),
        "recording": Target(read=events, suffix=".bin", seeds=(recorded(),)),
        "gpus": text_of(parse_gpus, b"A100:8", b"H100,H200:1..8", b"A100:40GB..80GB:1..8"),
        "amounts": text_of(partial(amounts, quantities), b"1h30m", b"120GB", b"4x16", b"50 USD"),
    }  # fmt: skip


def submission(path: Path, read: Callable[..., object]) -> object:
    """Read Slurm's options as the filter on its command line hands them over."""
    from advisor.collectors import bounded

    try:
        options = bounded.read_json(path)
    except ValueError:
        return None  # cli_filter.lua writes JSON
    return read(options, {}, {"main": "8xA100-80GB"}) if isinstance(options, Mapping) else None


def recorded() -> bytes:
    """Return the beginning of a real event file."""
    (path,) = (frame.ROOT / "tests" / "golden" / "run-schema-1").glob("ev-*.bin")
    return path.read_bytes()[:LEAST]


def events(path: Path) -> object:
    """Read a recording's events."""
    from advisor.collectors.format.events import Events, take_all

    found = Events()
    take_all(found, path.read_bytes())
    return found


def amounts(quantities: Any, text: str) -> None:
    """Read a text as every kind of amount."""
    for name in ("hours", "seconds", "bytes", "cores_and_memory", "rate", "share", "usd", "count"):
        with contextlib.suppress(*OURS):
            getattr(quantities, f"parse_{name}")(text)


# Inputs, and what may come of one.


def mutated(data: bytes, rng: random.Random, most: int) -> bytes:
    """Return the input with one to four tokens or bytes replaced, doubled, dropped or moved."""
    for _ in range(rng.randint(1, 4)):
        tokens = _TOKEN.findall(data)
        if not tokens or rng.random() < 0.15:
            at = rng.randrange(len(data) + 1)
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + rng.randint(0, 3) :]
            continue
        at = rng.randrange(len(tokens))
        match rng.randrange(4):
            case 0:
                tokens[at] = rng.choice(NASTY)
            case 1:
                tokens.insert(at, rng.choice(tokens))
            case 2:
                del tokens[at : at + rng.choice((1, 1, 2, 8))]
            case _:
                other = rng.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
        data = b"".join(tokens)
    return data[:most]


class TooSlowError(Exception):
    """One input took more than ``LONGEST_S`` of processor time."""


def check(target: Target, data: bytes, folder: Path) -> None:
    """Read one input; raise where it ends in anything but an answer or an error with a hint."""
    path = folder / f"x{target.suffix}"
    path.write_bytes(data)
    try:
        target.read(path)
    except OURS as error:
        if not error.hint or "\n" in str(error) or len(str(error)) > 3000:
            raise AssertionError(f"not one line and a hint: {error!r}") from error


@contextlib.contextmanager
def within(seconds: float) -> Any:
    """Raise TooSlowError after so much processor time."""

    def late(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def drawn(target: Target, inputs: int, seed: int, folder: Path) -> bytes | None:
    """Read so many random inputs; return the first that is not answered, the error on stderr."""
    rng = random.Random(seed)
    for number in range(inputs):
        seeds = target.seeds
        most = target.most_bytes
        data = seeds[number] if number < len(seeds) else mutated(rng.choice(seeds), rng, most)
        try:
            with within(LONGEST_S):
                check(target, data, folder)
        except Exception as error:
            print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr)
            return data
    return None


def guided(target: Target, inputs: int, seed: int, corpus: Path, folder: Path) -> None:
    """Let atheris look for inputs that reach new lines; it ends the process with its own code."""
    import atheris

    def one(data: bytes) -> None:
        check(target, data, folder)

    def other(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return mutated(data, rng, most)

    limits = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={target.most_bytes}",
              "-timeout=5", f"-rss_limit_mb={2 * MOST_BYTES >> 20}"]  # fmt: skip
    found = f"-artifact_prefix={corpus.parent}/found-{corpus.name}-"
    atheris.Setup([sys.argv[0], str(corpus), *limits, found], one, custom_mutator=other)
    atheris.Fuzz()


def child(name: str, inputs: int, seed: int, corpus: Path | None) -> int:
    """Try one reader in this process; 1 where something was found."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as at:
        folder = Path(at)
        if corpus is not None and _has_atheris():
            import atheris

            with (
                contextlib.redirect_stderr(io.StringIO()),
                atheris.instrument_imports(include=list(WATCHED)),
            ):
                target = targets()[name]
            corpus.mkdir(parents=True, exist_ok=True)
            for number, data in enumerate(target.seeds):
                (corpus / f"seed-{number}").write_bytes(data)
            guided(target, inputs, seed, corpus, folder)
        target = targets()[name]
        with contextlib.suppress(Exception):
            target.read(folder / "absent")  # what is read once a process
        soft = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = drawn(target, inputs, seed, folder)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - soft
        if found is None and grown <= MOST_BYTES:
            return 0
        where = (corpus or Path(tempfile.gettempdir())) / f"found-{name.replace(' ', '-')}"
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(found or b"")
        print(f"{where}: {(found or b'')[:300]!r}; memory grew by {grown >> 20} MiB",
              file=sys.stderr)  # fmt: skip
        return 1


def _has_atheris() -> bool:
    import importlib.util

    return importlib.util.find_spec("atheris") is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Try every reader that is named, or all, each in a process of its own."""
    args = frame.options(__doc__, {
        "--only": {"action": "append", "default": [], "help": "a reader; repeatable"},
        "--inputs": (2000, "inputs a reader"), "--seed": 0, "--corpus": Path,
        "--child": (False, "in this process"),
    }, argv)  # fmt: skip
    names = args.only or list(targets())
    if args.child:
        return child(names[0], args.inputs, args.seed, args.corpus)
    failed = []
    for name in names:
        command = [sys.executable, "-m", "advisor.lab.speed.fuzz", "--child", "--only", name,
                   "--inputs", str(args.inputs), "--seed", str(args.seed)]  # fmt: skip
        if args.corpus:
            command += ["--corpus", str(args.corpus / name.replace(" ", "-"))]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        failed += [name] * (done.returncode != 0)
        words = done.stderr.strip().splitlines()
        print(f"{name}: {'FOUND' if done.returncode else 'nothing found'}", flush=True)
        if done.returncode:
            print("  " + "\n  ".join(words[-12:]), flush=True)
    print(f"{len(names)} readers, {args.inputs * len(names):,} inputs: {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
