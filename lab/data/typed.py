"""The bank of questions as people typed them: lines made from measured rows by a stated rule.

    python -m advisor.lab.data.typed SHARED

writes ``datasets/questions`` from the tables that ship, from those under ``SHARED`` that do not
(facts with their sources; ``shared/data/measurements``), and from the lines of public threads
(``shared/acceptance/typed/questions.csv``). A line says what a person knows: the model, the batch,
the length, the GPUs by their usual name, the precision where it is not bf16. It does not say the
network, the degrees, the micro-batch over several devices or what the software overlaps; the
software is named where the figures are published in its own repository.

Of every table so many rows are taken that models, GPUs and numbers of GPUs come up as evenly as
can be (``spread``). Nobody looked at what the product answers.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from advisor import data
from advisor.collectors import atomic
from advisor.lab.data import BLACKWELL, FINETUNE, LAYOUTS, MLPERF, RECORDED, Dataset
from advisor.lab.speed.on_gpu import SIZES

Frame = Any  # of pandas, whose rows are of any type
Line = dict[str, str]
FOLDER: Final = "questions"
SEED: Final = 54
COLUMNS: Final = (
    "id", "line", "files", "quantity", "unit", "truth", "low", "high", "definition", "source",
    "licence", "day", "group", "note",
)  # fmt: skip
# Name in the tables -> what people say. The others are said as they are written.
_GPUS: Final = {
    "A100": "A100-80GB", "A800-80GB": "A800-SXM4-80GB", "H100-80GB-SXM": "H100",
    "NVIDIA H100-SXM-80GB": "H100", "NVIDIA H100-SXM5-80GB": "H100", "H100-SXM-80GB": "H100",
    "A100-SXM-80GB": "A100-80GB", "H200-SXM": "H200", "H100 80GB HBM3": "H100",
    "H100-80GB": "H100", "H200-141GB": "H200", "H100-96GB-HBM2e-500W": "H100-SXM5-96GB",
    "B200-SXM-180GB": "B200", "GH-96": "GH200", "L40S-48GB": "L40S", "RTX-3090": "RTX3090",
    "NVIDIA-A100-SXM4-80GB": "A100-80GB", "NVIDIA-A100-80GB-PCIe": "A100-PCIe-80GB",
    "NVIDIA-H100-PCIe": "H100-PCIe",
}  # fmt: skip


def _table(dataset: Dataset, name: str) -> Frame:
    return dataset.read(name, data.root("datasets"))


def spread(rows: Frame, most: int, by: tuple[str, ...]) -> Frame:
    """Return at most so many rows, whose values of ``by`` come up as evenly as can be.

    Rows are gone through in a random order (seed 54); each next one is the row whose values have
    been taken least often.
    """
    rest = list(np.random.default_rng(SEED).permutation(len(rows)))
    taken: list[int] = []
    seen: Counter[tuple[str, Any]] = Counter()
    while rest and len(taken) < most:
        best = min(rest, key=lambda i: sum(seen[name, rows.iloc[i][name]] for name in by))
        rest.remove(best)
        taken.append(int(best))
        seen.update((name, rows.iloc[best][name]) for name in by)
    return rows.iloc[sorted(taken)]


def _number(value: Any) -> str:
    return f"{float(value):.6g}"


def _flags(**said: Any) -> str:
    """Return flags of what is known, whole numbers as such; True is a flag alone."""
    words = []
    for name, value in said.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False and not pd.isna(value):
            words.append(f"{flag} {value if isinstance(value, str) else f'{value:.0f}'}")
    return " ".join(words)


def _transformer(row: Any, *, is_gated: bool) -> str:
    """Return a transformer's dimensions; what a flag is by default is not said."""
    ffn = None if row.ffn == 4 * row.hidden else row.ffn
    kv = None if row.kv_heads == row.heads else row.kv_heads
    return _flags(layers=row.layers, hidden=row.hidden, heads=row.heads, kv_heads=kv, ffn=ffn,
                  gated=is_gated, vocabulary=row.vocabulary)  # fmt: skip


def _on(job: str, gpu: str, devices: float, per_node: float = 8) -> str:
    """Return the whole line: GPUs of one machine by name and number, machines as a cluster."""
    name, count, each = _GPUS.get(gpu, gpu), int(devices), int(min(per_node, devices))
    if count <= each:
        return f"predict {job} --gpu {name}" + (f" --count {count}" if count > 1 else "")
    return f"plan --cluster {count // each}x{each}x{name} {job}"


def _precision(said: str) -> str | None:
    """Return the precision that has to be typed; bf16 is what is taken anyway."""
    told = said.lower().replace("mx", "").replace("nv", "").replace("amp-", "").split(" ")[0]
    return next((one for one in ("fp8", "fp4", "fp16", "tf32", "fp32") if one in told), None)


def _line(name: str, line: str, quantity: str, unit: str, truth: Any, **more: Any) -> Line:
    said = truth if isinstance(truth, str) else _number(truth)
    found = dict.fromkeys(COLUMNS, "") | {
        "id": name, "line": line, "quantity": quantity, "unit": unit, "truth": said
    }  # fmt: skip
    return found | {key: str(value) for key, value in more.items()}


# Tables that ship.

# Tables of a repository that is the software itself -> what its user names.
STACKS: Final = {
    "torchtitan": "torchtitan", "llm_foundry_mpt": "llm-foundry", "megatron_sc21": "megatron-lm",
    "megatron_jan2021": "megatron-lm", "megatron_seqsel": "megatron-lm@3.0.2", "nemo_2407": "nemo",
    "nemo_bridge": "nemo", "dgxc_bench": "nemo",
}  # fmt: skip
_OF_LAYOUTS: Final = (
    "layers", "hidden", "heads", "sequence", "global_batch", "accelerators",
    "accelerators_per_node",
)  # fmt: skip


def _layout_rows() -> Frame:
    """Return runs of dense transformers on one kind of GPU that state what is typed."""
    rows = _table(LAYOUTS, "runs")
    keep = (rows.status == "ok") & (rows.quality != "low") & (rows.is_mixed == 0)
    keep &= rows.arch.isin(["gpt", "llama"]) & rows[list(_OF_LAYOUTS)].notna().all(axis=1)
    adapters = rows.framework.astype(str).str.contains("lora") | rows.model.astype(
        str
    ).str.contains("lora")
    offloads = rows.framework.astype(str).str.contains("Offload")
    return rows[keep & ~adapters & ~offloads].reset_index(drop=True)


def _layout_line(row: Any, name: str, **said: Any) -> Line:
    job = _flags(
        sequence=row.sequence, batch=row.global_batch, precision=_precision(str(row.precision)),
        stack=STACKS.get(row.table), finetune=row.table == "vectorlm",
    )  # fmt: skip
    model = _transformer(row, is_gated=row.arch == "llama")
    return _line(
        name,
        _on(f"{model} {job}", row.accelerator, row.accelerators, row.accelerators_per_node),
        source=str(row.source).split(";")[0], licence=row.licence, day="2026-11-20",
        group=f"layouts/{row.table}", note=f"{row.row_id}, {row.model}", **said,
    )  # fmt: skip


def layouts(shared: Path) -> Iterator[Line]:
    """Yield three steps of every table, and its tightest run, which fits; memory where printed."""
    rows = _layout_rows()
    for _, here in rows[rows.step_s.notna()].groupby("table", sort=True):
        # One question was measured in several layouts: its truth is the fastest.
        best = here.sort_values("step_s").drop_duplicates(
            [*_OF_LAYOUTS, "accelerator", "precision"]
        )
        some = spread(best.sort_index(), 3, ("model", "accelerator", "accelerators"))
        for row in some.itertuples():
            yield _layout_line(row, row.row_id, quantity="step_time", unit="s", truth=row.step_s)
        room = here.accelerators / here.parameters_1e9
        tight = here[room == room.min()].head(1)
        for row in tight.itertuples():
            yield _layout_line(row, f"{row.row_id}-fits", quantity="fits", unit="", truth="yes")
    of_pytorch = rows[(rows.table == "torchtitan") & rows.memory_gib.notna()]
    for row in spread(of_pytorch, 3, ("accelerator", "accelerators")).itertuples():
        yield _layout_line(
            row, f"{row.row_id}-memory", quantity="memory", unit="GiB", truth=row.memory_gib,
            definition="reserved",
        )  # fmt: skip


# Campaign -> Lambda's machine, its price in the catalogue that ships, and the bill as published.
_BILLS: Final = {
    "llm.c GPT-2 350M": ("lambda:gpu_8x_a100_80gb_sxm4", 22.32, 200),
    "llm.c GPT-2 1558M": ("lambda:gpu_8x_h100_sxm5", 31.92, 672),
}


def _tokens(amount: float) -> str:
    """Return an amount of tokens as people say it: 300B, 1.4T."""
    return f"{amount / 1e12:.4g}T" if amount >= 1e12 else f"{amount / 1e9:.4g}B"


def campaigns(shared: Path) -> Iterator[Line]:
    """Yield the hours of published runs whose GPUs are counted, and which nobody only planned."""
    rows: Frame = pd.read_csv(
        data.root("datasets") / "measurements" / "campaigns" / "campaigns.csv"
    )
    sizes = ["layers", "hidden", "heads", "sequence", "tokens", "global_batch_tokens"]
    for name in (*sizes, "kv_heads", "ffn", "vocabulary", "accelerator_memory_gb"):
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    keep = rows[[*sizes, "accelerators", "device_h", "accelerator"]].notna().all(axis=1)
    keep &= ~rows.kind.str.startswith("estimate") & (rows.confidence != "memory")
    keep &= rows.accelerator.isin(["A100", "H100"]) & (rows.accelerators <= 2048)
    keep &= ~rows.campaign.str.contains("llm.c GPT-2 124M")  # among the threads' lines
    for row in rows[keep].itertuples():
        batch = round(row.global_batch_tokens / row.sequence)
        job = _flags(sequence=row.sequence, batch=batch, tokens=_tokens(row.tokens),
                     precision=_precision(str(row.precision)))  # fmt: skip
        gb = 80.0 if pd.isna(row.accelerator_memory_gb) else row.accelerator_memory_gb
        gpu = "H100" if row.accelerator == "H100" else f"A100-{gb:.0f}GB"
        job = f"{_transformer(row, is_gated=row.is_gated == 'yes')} {job}"
        more = {"licence": "facts", "day": "2026-11-21", "group": f"campaigns/{row.family}"}
        hours, note = row.device_h / row.accelerators, f"{row.campaign}; {row.kind}"
        yield _line(f"campaign-{row.Index}", _on(job, gpu, row.accelerators), "training_time", "h",
                    hours, source=row.source, note=note, **more)  # fmt: skip
        for name, (machine, usd_per_h, published_usd) in _BILLS.items():
            if row.campaign.startswith(name):
                usd = _number(hours * usd_per_h)
                yield _line(
                    f"campaign-{row.Index}-bill", f"predict {job} --on {machine}", "cost", "USD",
                    usd, low=published_usd, high=usd, source="karpathy/llm.c discussions 481, 677",
                    note="low is the bill as published in 2024, the truth the hours at the price "
                    "of 2026-07-30 in the catalogue", **more,
                )  # fmt: skip


def finetune(shared: Path) -> Iterator[Line]:
    """Yield one step of every model of IBM's fine-tuning runs."""
    from advisor.lab.fit.asked import MODELS, finetune_rows_read

    rows = _table(FINETUNE, "runs")
    runs, _ = finetune_rows_read(data.root("datasets"))  # those that a data sheet allows
    rows = rows.loc[[int(run.row_id.rpartition("-")[2]) for run in runs]]
    rows = rows[rows.nodes == 1]
    words = {"full": "--finetune", "lora": "--finetune --lora 8",
             "gptq-lora": "--finetune --lora 8 --base-bits 4"}  # fmt: skip
    some: Frame = pd.concat(spread(one, 1, ("method",)) for _, one in rows.groupby("model"))
    for row in some.itertuples():
        dims = {"experts": None, "experts_per_token": None, "is_gated": False,
                "has_tied_embeddings": False, **MODELS[row.model]}  # fmt: skip
        gated, _ = dims.pop("is_gated"), dims.pop("has_tied_embeddings")
        job = _flags(**dims, gated=gated, sequence=row.sequence, batch=row.global_batch)
        yield _line(
            f"finetune-{row.Index}",
            _on(f"{job} {words[row.method]}", row.accelerator, row.accelerators),
            "step_time", "s", row.global_batch * row.sequence / row.tokens_per_s,
            source="atlarge-research/coastline-recommender", licence="MIT, Apache-2.0",
            day="2026-11-21", group=f"finetune/{row.model}", note=row.method,
        )  # fmt: skip


def blackwell(shared: Path) -> Iterator[Line]:
    """Yield three of SimuMax's steps of dense models on eight B200s."""
    rows = _table(BLACKWELL, "steps")
    rows = rows[(rows.attention == "gqa") & (rows.experts == 1)]
    for row in spread(rows, 3, ("model", "layers", "global_batch")).itertuples():
        job = _flags(sequence=row.sequence, batch=row.global_batch)
        yield _line(
            f"blackwell-{row.Index}",
            _on(f"{_transformer(row, is_gated=True)} {job}", row.accelerator, row.accelerators),
            "step_time", "s", row.step_s, source="MooreThreads/SimuMax", licence="Apache-2.0",
            day="2026-11-21", group="blackwell", note=row.case,
        )  # fmt: skip


# MLPerf's language models, as its reference implementations describe them. All of these entries
# run in fp8, as their own settings say (``FP8=True``, ``config_fp8.sh``).
_MLPERF: Final = {
    "gpt3": "--layers 96 --hidden 12288 --heads 96 --vocabulary 51200 --sequence 2048",
    "llama2_70b_lora": "--layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --gated "
    "--vocabulary 32000 --sequence 8192 --lora 16",
    "llama31_405b": "--layers 126 --hidden 16384 --heads 128 --kv-heads 8 --ffn 53248 --gated "
    "--vocabulary 128256 --sequence 8192",
}  # fmt: skip


def mlperf(shared: Path) -> Iterator[Line]:
    """Yield two rates of each of MLPerf's language models."""
    rows = _table(MLPERF, "entries")
    rows = rows[rows.benchmark.isin(list(_MLPERF)) & (rows.samples_per_s > 0)]
    rows = rows[rows.accelerator.isin(["H100-SXM-80GB", "H200-SXM", "A100-SXM-80GB", "B200"])]
    rows = rows[rows.accelerators.isin([8, 16, 32, 64, 128, 256, 512, 1024])]
    for name, here in rows.groupby("benchmark"):
        for row in spread(here, 2, ("accelerator", "accelerators", "round")).itertuples():
            job = f"{_MLPERF[str(name)]} {_flags(batch=row.global_batch)} --precision fp8"
            yield _line(
                f"mlperf-{row.Index}", _on(job, row.accelerator, row.accelerators),
                "throughput", "samples/s", row.samples_per_s,
                source=f"mlcommons/training_results_{row.round}", licence="Apache-2.0",
                day="2026-11-20", group=f"mlperf/{name}", note=f"{row.organisation} {row.system}",
            )  # fmt: skip


RESNETS: Final = {
    "resnet18": "224:64:2x64,2x128,2x256,2x512:basic",
    "resnet34": "224:64:3x64,4x128,6x256,3x512:basic",
    "resnet50": "224:64:3x256,4x512,6x1024,3x2048:bottleneck",
    "resnet101": "224:64:3x256,4x512,23x1024,3x2048:bottleneck",
    "resnet152": "224:64:3x256,8x512,36x1024,3x2048:bottleneck",
}


def images(shared: Path) -> Iterator[Line]:
    """Yield timm's ResNets on an RTX 3090."""
    rows = _table(RECORDED, "timm")
    rows = rows[rows.network.isin(list(RESNETS))]
    for row in spread(rows, 3, ("network", "memory_format")).itertuples():
        job = f"--cnn {RESNETS[row.network]} --batch {row.batch} --precision fp16"
        yield _line(
            f"timm-{row.Index}", _on(job, row.accelerator, 1), "throughput", "samples/s",
            row.samples_per_s, source="huggingface/pytorch-image-models", licence="Apache-2.0",
            day="2026-11-22", group="recorded/timm", note=f"{row.network}, {row.memory_format}",
        )  # fmt: skip


def lent_gpu(shared: Path) -> Iterator[Line]:
    """Yield the described transformers that ran on an H200: their steps and their memory."""
    record = data.root("datasets") / "gpu_runs" / "h200" / "record.jsonl"
    for text in record.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        words = row["part"].split("/")
        if words[0] != "step" or words[-1] != "gpu":
            continue
        layers, hidden, heads, sequence, batch = next(
            one for one in SIZES if f"{one[0]}x{one[1]}" == words[1]
        )
        job = _flags(layers=layers, hidden=hidden, heads=heads, sequence=sequence, batch=batch,
                     precision=_precision(words[2]))  # fmt: skip
        more = {"source": "our own measurement: datasets/gpu_runs/h200", "licence": "Apache-2.0",
                "day": row["at"][:10], "group": "gpu_runs/h200", "note": row["part"]}  # fmt: skip
        name, seen = f"h200-{words[1]}-{words[2]}", row["measured"]
        yield _line(name, _on(job, "H200", 1), "step_time", "s", seen["step_s"],
                    low=seen["low_s"], high=seen["high_s"], **more)  # fmt: skip
        yield _line(f"{name}-memory", _on(job, "H200", 1), "memory", "GiB",
                    seen["peak_bytes"] / 2**30, definition="peak allocated", **more)  # fmt: skip


# Tables of ``shared/data/measurements``: facts, with their sources and licences.


def _shared(shared: Path, name: str) -> Frame:
    return pd.read_csv(shared / "data" / "measurements" / name / f"{name}.csv")


_DEFINITIONS: Final = {
    "max_allocated": "peak allocated", "peak_reserved": "reserved", "peak_active": "peak active",
    "monitor": "what a monitor reads",
}  # fmt: skip


def memory(shared: Path) -> Iterator[Line]:
    """Yield what fine-tuning on one GPU takes, every failure, and each source's tightest runs."""
    rows = _shared(shared, "memory")
    rows = rows.assign(devices=pd.to_numeric(rows.devices, errors="coerce"))
    failed = (rows.verdict == "oom") & (rows.sharding == "fsdp")
    keep = (rows.measured == "measured") & ((rows.devices == 1) | failed)
    keep &= rows[["layers", "hidden", "heads"]].notna().all(axis=1)
    is_stated = rows[["micro_batch", "sequence"]].notna().all(axis=1)
    keep &= is_stated | (rows.verdict == "oom")  # a failure needs no more than the model
    keep &= rows.technique.str.fullmatch(r"full|q?lora r\d+ \(?(query and|attention|all|on ).*")
    keep &= (rows.recompute != "unsaid") | ~is_stated
    keep &= rows.definition.isin(list(_DEFINITIONS))
    rows = rows[keep & (rows.offload == "none")].assign(kind=rows.technique.str.split(" ").str[0])
    threads = (rows.model == "Llama-2-7B") & rows.technique.str.startswith("lora")
    rows = rows[~(rows.source.str.contains("litgpt") & threads)]
    for _, here in rows.groupby("source"):
        ran = here[here.verdict == "ran"]
        for row in spread(ran, 6, ("model", "kind", "micro_batch", "sequence")).itertuples():
            yield _memory_line(row, row.id, quantity="memory", unit="GiB", truth=row.memory_gib,
                               definition=_DEFINITIONS[row.definition])  # fmt: skip
        for row in ran.nlargest(2, "memory_gib").itertuples():
            yield _memory_line(row, f"{row.id}-fits", quantity="fits", unit="", truth="yes")
        for row in here[here.verdict == "oom"].itertuples():
            yield _memory_line(row, row.id, quantity="fits", unit="", truth="no")


def _memory_line(row: Any, name: str, **said: Any) -> Line:
    is_quantised = row.kind == "qlora"
    rank = None if row.kind == "full" else float(row.technique.split(" r")[1].split(" ")[0])
    job = _flags(
        sequence=float(row.sequence), batch=row.micro_batch * row.devices,
        micro_batch=row.micro_batch, stack="fsdp" if row.sharding == "fsdp" else None,
        lora=rank, base_bits=8.0 if is_quantised and "int8" in row.precision else None,
        quantised_base=is_quantised and "int8" not in row.precision,
        weights="bf16" if rank is None and "bf16 weights" in str(row.precision) else None,
        recompute=None if row.recompute == "unsaid" else row.recompute,
    )  # fmt: skip
    model = f"{_transformer(row, is_gated=bool(row.gated))} {job}".strip()
    return _line(
        name, _on(model, row.gpu, row.devices),
        source=f"{row.source} {row.path}", licence=row.licence, day="2026-11-28",
        group=f"memory/{row.source}", note=f"{row.model}, {row.technique}", **said,
    )  # fmt: skip


def mixtures(shared: Path) -> Iterator[Line]:
    """Yield two steps of every mixture of experts, its configuration in a file."""
    rows = _shared(shared, "mixtures")
    rows = rows[rows.config.notna() & rows.step_s.notna() & rows.global_batch.notna()]
    rows = rows[~rows.source.str.contains("AMD") & (rows.devices <= 2048)]
    rows = rows[(rows.model != "Grok-1") | (rows.devices >= 512)]
    for (model, source), here in rows.groupby(["model", "source"]):
        for row in spread(here, 2 + (model != "Grok-1"), ("gpu", "precision")).itertuples():
            job = _flags(sequence=row.sequence, batch=row.global_batch,
                         precision=_precision(row.precision))  # fmt: skip
            file = f"{str(model).lower()}.json"
            yield _line(
                row.id, _on(f"--model {file} {job}", row.gpu, row.devices, row.per_node),
                "step_time", "s", row.step_s, files=file, source=f"{row.source} {row.path}",
                licence=row.licence, day="2026-11-28", group=f"mixtures/{source}",
                note=f"{row.release}",
            )  # fmt: skip


def stacks(shared: Path) -> Iterator[Line]:
    """Yield steps of PyTorch's own stacks and of speed runs, and hours of whole ones."""
    rows = _shared(shared, "stacks")
    sizes = ["layers", "hidden", "heads", "sequence", "global_batch", "vocabulary"]
    # nanochat's batch is said in tokens
    batch = rows.tokens_per_step / rows.sequence
    rows = rows.assign(global_batch=rows.global_batch.fillna(batch), kv_heads=rows.kv_heads)
    keep = rows[[*sizes, "step_s"]].notna().all(axis=1) & ~rows.gpu.str.contains("unsaid")
    keep &= ~rows.source.str.contains("Keller") | (rows.global_batch == 512)
    keep &= (rows.source != "karpathy/llm.c") | (rows.model != "GPT-2 124M")  # a thread's line
    for source, here in rows[keep].groupby("source"):
        some = spread(here, 5 if source == "pytorch/ao" else 2, ("gpu", "precision", "model"))
        for row in some.itertuples():
            yield _stack_line(row, row.id, quantity="step_time", unit="s", truth=row.step_s)
        whole = here[here.run_s.notna() & here.steps.notna() & ~here.source.str.contains("Kell")]
        for row in spread(whole, 2, ("model",)).itertuples():
            yield _stack_line(
                row, f"{row.id}-whole", quantity="training_time", unit="h",
                truth=row.run_s / 3600, more=_flags(total_steps=row.steps),
            )  # fmt: skip


def _stack_line(row: Any, name: str, more: str = "", **said: Any) -> Line:
    is_titan = row.source in ("pytorch/ao", "pytorch/torchtitan")
    job = _flags(sequence=row.sequence, batch=row.global_batch,
                 precision=_precision(str(row.precision)),
                 stack="torchtitan" if is_titan else None)  # fmt: skip
    model = _transformer(row, is_gated=row.gated == 1)
    return _line(
        name, _on(f"{model} {job} {more}".strip(), row.gpu, row.devices),
        source=f"{row.source} {row.path}", licence=row.licence, day="2026-11-28",
        group=f"stacks/{row.source}", note=f"{row.model}, {row.precision}", **said,
    )  # fmt: skip


def amd(shared: Path) -> Iterator[Line]:
    """Yield AMD's own figures of Instinct cards whose batch is printed."""
    rows = _shared(shared, "amd_tpu")
    rows = rows[rows.source.str.contains("Primus") & rows.per_device_batch.notna()]
    rows = rows[~rows.note.astype(str).str.contains("doubtful")]
    for row in rows.itertuples():
        job = _flags(sequence=row.sequence, batch=row.per_device_batch * row.devices,
                     precision=_precision(row.precision))  # fmt: skip
        yield _line(
            row.id, _on(f"{_transformer(row, is_gated=True)} {job}", row.chip, row.devices),
            "throughput", "tokens/s", row.tokens_per_s_per_device * row.devices,
            source=f"{row.source} {row.path}", licence=row.licence, day="2026-11-28",
            group="amd_tpu/AMD-AGI/Primus", note=f"{row.model}, {row.precision}",
        )  # fmt: skip


# Lines that people typed, or would have.


def threads(shared: Path) -> Iterator[Line]:
    """Yield the lines of public threads and documentation, as they were collected."""
    with (shared / "acceptance" / "typed" / "questions.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            definition = "peak active" if "peak active" in row["note"] else ""
            definition = "peak allocated" if "max allocated" in row["note"] else definition
            yield _line(
                row["id"], row["line"], row["quantity"], row["unit"], row["truth"],
                low=row["low"], high=row["high"], definition=definition, source=row["source"],
                licence="facts of public threads and documentation", day="2026-11-28",
                group="threads", note=row["note"],
            )  # fmt: skip


KINDS: Final[tuple[Callable[[Path], Iterator[Line]], ...]] = (
    threads, layouts, campaigns, finetune, blackwell, mlperf, images, lent_gpu, memory, mixtures,
    stacks, amd,
)  # fmt: skip


def write(shared: Path, out: Path) -> int:
    """Write the bank and the small files that its lines name; returns the lines."""
    every = [line for kind in KINDS for line in kind(shared)]
    # The same words may be another row's question: what was measured first of it stands.
    lines = list({(one["line"], one["quantity"]): one for one in reversed(every)}.values())[::-1]
    (out / "files").mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    for row in _shared(shared, "mixtures").dropna(subset="config").itertuples():
        file = out / "files" / f"{row.model.lower()}.json"
        if any(line["files"] == file.name for line in lines):
            whole = json.dumps(json.loads(row.config), indent=1)
            atomic.write_text(file, f"{whole}\n")
    rows = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    rows.writeheader()
    rows.writerows(lines)
    atomic.write_text(out / "questions.csv", table.getvalue())
    return len(lines)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("shared", type=Path)
    asked.add_argument("--out", type=Path, default=data.root("datasets") / FOLDER)
    said = asked.parse_args()
    sys.stdout.write(f"{write(said.shared, said.out)} lines\n")
