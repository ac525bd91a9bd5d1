"""What people read: what a job needs of memory, why it is refused, and no slips of a program.

Questions go through the command line, as people put them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advisor.cli import app

RUN = CliRunner()
GOLDEN = Path(__file__).parent / "golden"
RECORDED, REHEARSED = GOLDEN / "run-schema-1", GOLDEN / "run-rehearsed"
TRACE = GOLDEN / "tiresias" / "60_job_n2g4.csv"

GPT2 = "--layers 12 --hidden 768 --heads 12"
TINY = "--layers 2 --hidden 64 --heads 2 --sequence 32 --vocabulary 100 --batch 1"
LARGE = "--layers 80 --hidden 8192 --heads 64 --sequence 512 --batch 64 --total-steps 10"
CNN = "--cnn 32:64:2x64,2x128:basic"
L4 = "--gpus L4 --max-nodes 1"


def said(line: str) -> tuple[int, str]:
    """Return the exit code and all that is said to a line, hints of errors included."""
    done = RUN.invoke(app, shlex.split(line), env={"COLUMNS": "80"})
    error = done.exception
    if error is None or isinstance(error, SystemExit):
        return done.exit_code, done.output
    assert hasattr(error, "hint"), (line, error)
    return getattr(error, "exit_code", 1), f"{done.output}\n{error}\n{error.hint}"


def record(line: str) -> dict[str, Any]:
    code, text = said(f"{line} --json")
    assert code == 0, (line, text)
    found: dict[str, Any] = json.loads(text)
    return found


# No slips: a count of one in the plural, powers of ten, signs before signs, Python's own words.


SLIPS = (
    r"\$-", r"-\$-?0\b(?!\.)", r"\binf\b", r"\bnan\b", r"\bNone\b", r"\['", r": \[\d",
    r"(?<!--lr )\b\d(?:\.\d+)?e[+-]\d", r"\b(\d+) to \1\b",
    r"(?<![\w.,:/-])1 (?:steps|phases|samples|devices|machines|layouts|candidates|offers|workers"
    r"|jobs|times|runs|ranks|nodes|vCPUs|tokens|epochs)\b",
)  # fmt: skip
ASKED = [
    f"predict {GPT2} --gpu L4 --total-steps 1",
    f"predict {GPT2} --gpu L4 --tokens 5",
    f"predict {TINY} --gpu H100",
    f"predict {TINY} --gpu B200 --total-steps 1000000000",
    f"predict {TINY} --on c7g.medium --precision fp32 --total-steps 1",
    f"predict {CNN} --gpu L4 --batch 1 --total-steps 1",
    f"predict {GPT2} --on g6.12xlarge --count 2 --tokens 1B",
    f"predict {GPT2} --on g6.xlarge --tokens 1B --completion spot",
    f"predict {GPT2} --gpu L4 --batch 8 --zero 3 --offload",
    f"predict {GPT2} --gpu L4 --count 8 --tp 3",
    f"predict {LARGE} --gpu RTX4090",
    f"predict --run {RECORDED} --on m5.large --epochs 1",
    f"predict --run {RECORDED} --on t3.nano",
    f"predict --run {REHEARSED} --gpu H100 --total-steps 1",
    f"predict --run {REHEARSED} --gpu L4 --total-steps 1",
    f"plan {GPT2} --cluster 1xL4 --batch 1 --total-steps 1",
    f"plan {GPT2} --cluster 1xRTX3090+1xV100@10Gbps --batch 64 --tokens 1B",
    f"plan {GPT2} --cluster 4xRTX3090+8xV100@10Gbps --batch 64 --tokens 1B",
    f"plan {GPT2} --cluster 1xL4 --for 1h --batch 8",
    f"plan {LARGE} --cluster 8xL4",
    "plan --cluster 1xL4 --for 1h",
    f"recommend {GPT2} --tokens 5 {L4}",
    f"recommend {TINY} --total-steps 1 --gpus T4:1 --max-nodes 1",
    f"recommend {GPT2} --tokens 1B {L4} --explain 1",
    f"recommend {GPT2} --tokens 1B {L4} --budget 1",
    f"recommend {GPT2} --tokens 1B --cluster 4xRTX3090+8xV100@10Gbps --batch 64",
    f"recommend {LARGE} {L4}",
    f"recommend {GPT2} --lora 8 --tp 8 --tokens 1B --gpus L4:1",
    f"recommend --run {RECORDED} --epochs 1 {L4}",
    f"advise {GPT2} --tokens 1B {L4}",
    f"advise --run {RECORDED} --epochs 1 --on m5.large",
    f"advise --run {REHEARSED} --total-steps 10 --gpus H100 --max-nodes 1",
    f"simulate elastic {GPT2} --tokens 100M --on g6.xlarge",
    "simulate spot --hours 0.1 --nodes 1",
    f"simulate queue --trace {TRACE} --nodes 2 --devices-per-node 4 --devices 1 --hours 1",
    f"gate {GPT2} --tokens 5 --on g6.xlarge --budget 100",
    f"gate {GPT2} --tokens 1B --on g6.xlarge --budget 1",
    f"export {GPT2} --tokens 5 {L4} --to slurm -o -",
    f"export {GPT2} --tokens 1B {L4} --to kubernetes -o -",
    f"runs show {RECORDED}",
    f"runs show {REHEARSED}",
    "catalogue list --gpus L4 --top 1",
]


@pytest.mark.parametrize("line", ASKED)
def test_no_answer_slips_into_a_programs_words(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = said(line)
    assert code in (0, 2, 3), text
    for slip in SLIPS:
        assert not (found := re.search(f".*{slip}.*", text)), found[0]


def test_jobs_that_came_at_once_have_no_load(tmp_path: Path) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text("job_id,devices,submit_s,duration_s\n0,1,0,164\n", encoding="utf-8")
    line = f"simulate queue --trace {trace} --nodes 2 --devices-per-node 4 --devices 1 --hours 1"
    assert "load unknown on 2 x 4 devices" in " ".join(said(line)[1].split())
    assert "Infinity" not in said(f"{line} --json")[1]


def test_a_page_slips_no_more_than_a_terminal(tmp_path: Path) -> None:
    """Every text that the page holds of its answer."""
    code, _ = said(f"report {GPT2} --tokens 5 {L4} -o {tmp_path / 'page.html'}")
    assert code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    blobs = re.findall(r"<script[^>]*application/json[^>]*>(.*?)</script>", page, re.DOTALL)
    texts = [text for blob in blobs for text in strings((json.loads(blob) or {}).get("words", {}))]
    assert any("kept free" in text for text in texts)
    for slip in SLIPS:
        assert not [text for text in texts if re.search(slip, text)], slip


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


# Memory: what is needed, never more than what may be filled.


@pytest.mark.parametrize(
    "line",
    [
        f"predict {LARGE} --gpu H100 --count 8",
        f"predict {LARGE} --gpu H100 --count 16",
        f"predict {GPT2} --batch 64 --gpu L4",
        f"predict {GPT2} --batch 64 --on c7i.8xlarge",
        f"predict --run {REHEARSED} --gpu H100",
        f"predict --run {RECORDED} --on g6.xlarge",
        f"plan {LARGE} --cluster 8xH100-80GB",
        f"plan {GPT2} --cluster 4xRTX3090+8xV100@10Gbps --batch 64",
        f"plan --run {REHEARSED} --cluster 1xH100",
        f"recommend {GPT2} --tokens 1B {L4}",
        f"recommend {LARGE} --gpus H100:8 --max-nodes 2",
        f"recommend --run {RECORDED} --max-nodes 1 --cloud gcp",
    ],
)
def test_what_fits_needs_no_more_than_may_be_filled(line: str) -> None:
    found = record(line)
    rows = found.get("plans") or found.get("front") or [found]
    assert rows
    groups = {one["label"]: one for one in found.get("cluster", {}).get("groups", ())}
    for row in rows:
        parts = row["memory_gib_by_group"] or {"": row["memory_gib"]}
        for group, needed in parts.items():
            there = groups.get(group, row)
            if there["device_memory_gib"] is not None:
                assert 0 < needed <= there["device_memory_gib"] - there["kept_free_gib"]


def test_every_door_says_the_same_of_memory() -> None:
    """Row, text and plan: one figure, and the share of the card that is kept free beside it."""
    asked = f"{GPT2} --batch 64"
    one = record(f"predict {asked} --gpu L4")
    plan = record(f"plan {asked} --cluster 1xL4")["plans"][0]
    ranked = record(f"recommend {asked} --tokens 1B --gpus L4:1 --max-nodes 1")["front"][0]
    for name in ("memory_gib", "device_memory_gib", "kept_free_gib"):
        assert plan[name] == pytest.approx(one[name])
        assert ranked[name] == pytest.approx(one[name])
    words = re.search(r"needs \S+ of \S+ GiB, \S+ kept free", said(f"predict {asked} --gpu L4")[1])
    assert words is not None
    assert words[0] in " ".join(said(f"plan {asked} --cluster 1xL4")[1].split())
    explained = f"recommend {asked} --tokens 1B --gpus L4:1 --max-nodes 1 --explain 1"
    assert words[0] in said(explained)[1]


# Refusals: by how much it misses and what would fit, the same at every door.


def test_every_door_says_by_how_much_a_job_misses_and_what_would_fit() -> None:
    doors = (
        f"predict {LARGE} --on g6.xlarge",
        f"gate {LARGE} --on g6.xlarge --max-nodes 1",
        f"recommend {LARGE} --gpus L4:1 --max-nodes 1",
        f"plan {LARGE} --cluster 1xg6.xlarge",
    )
    misses = set()
    for line in doors:
        code, text = said(line)
        text = " ".join(text.split())
        assert code == 3, line
        assert "it would fit with devices of" in text, line
        misses |= set(re.findall(r"needs ([\d.]+) GiB and misses by ([\d.]+) GiB", text))
    assert len(misses) == 1, misses


@pytest.mark.parametrize(
    "door", ["predict {} --gpu L4 --count 8", "plan {} --cluster 8xL4", "recommend {} --gpus L4:8"]
)
def test_a_degree_that_does_not_divide_names_those_that_do(door: str) -> None:
    for tp, why in (("3", "tp 3 does not divide 8 devices"), ("8", "12 heads do not divide")):
        _, text = said(
            door.format(f"{GPT2} --tokens 1B --tp {tp}")
            + (" --max-nodes 1" if door.startswith("recommend") else "")
        )
        words = " ".join(text.split())
        assert why in words
        assert "tp may be 1, 2, 4" in words


def test_zero_on_one_device_is_answered_and_says_that_it_shares_nothing() -> None:
    asked = f"predict {GPT2} --batch 8 --gpu L4"
    plain = record(asked)
    for more in ("--zero 1", "--zero 2", "--zero 3", "--zero 3 --offload"):
        _, text = said(f"{asked} {more}")
        assert "it shares nothing" in " ".join(text.split()), more
    same = record(f"{asked} --zero 3")
    assert same["step_time_s"]["value"] == pytest.approx(plain["step_time_s"]["value"], rel=0.01)
    assert same["memory_gib"] == pytest.approx(plain["memory_gib"], rel=0.02)


def test_offload_on_one_device_keeps_two_bytes_a_parameter() -> None:
    """DeepSpeed's own count of ZeRO-2 with offload: gradients and optimizer lie on the host.

    6.7 B parameters are 12.6 GiB; buffers, context and activations of one sample stay small.
    """
    model = "--layers 32 --hidden 4096 --heads 32 --ffn 11008 --gated --vocabulary 32000"
    model += " --sequence 512 --batch 1 --micro-batch 1 --recompute full --stack deepspeed"
    found = record(f"predict {model} --offload --gpu A100-40GB")
    assert found["layout"]["offload"] == ["optimizer"]
    assert 12.6 < found["memory_gib"] < 17
    tiny = record(f"predict {model} --zero 3 --offload --gpu RTX3060")
    assert tiny["layout"]["offload"] == ["optimizer", "parameters"]
    assert tiny["memory_gib"] < found["memory_gib"]


# A job has its own name.


@pytest.mark.parametrize(
    ("place", "stated", "asked", "name"),
    [
        ("m/llama3-8b.json", None, "m/llama3-8b.json", "llama3-8b"),
        ("m/llama3-8b.json", "meta-llama/Llama-3-8B", "m/llama3-8b.json", "llama3-8b"),
        ("my-model/config.json", None, "my-model", "my-model"),
        ("my-model/config.json", None, "my-model/config.json", "my-model"),
        ("m/config.json", "meta-llama/Llama-3-8B", "m", "Llama-3-8B"),
        ("my-model/config.json", "/home/me/checkpoints/7", "my-model", "my-model"),
    ],
)
def test_a_job_is_called_by_its_models_name(
    place: str, stated: str | None, asked: str, name: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100,
        "max_position_embeddings": 32, "hidden_act": "silu", "_name_or_path": stated,
    }  # fmt: skip
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(json.dumps(config), encoding="utf-8")
    assert record(f"predict --model {asked} --gpu L4 --batch 1")["job"] == name
    _, text = said(f"recommend --model {asked} --batch 1 --total-steps 100 {L4}")
    assert text.startswith(f"{name}: 100 steps")
