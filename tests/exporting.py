"""What the tests of exports share: an answer, its rows elsewhere, recordings with any command."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from collecting import ROOT

from advisor.collectors.format.recording import Host, Recording

# A provider that each target rents from, and a machine of it that it can name.
MACHINES: Mapping[str, tuple[str, str, str, str | None, float]] = {
    "aws": ("aws", "g5.12xlarge", "us-east-1", "A10G", 4.0),
    "gcp": ("gcp", "g2-standard-48", "us-central1", "L4", 4.0),
    "azure": ("azure", "Standard_NC64as_T4_v3", "eastus", "T4", 4.0),
}


def recording_of(command: Sequence[str], folder: str = "/home/me/job") -> Recording:
    """A recording of a command that was started in a folder."""
    host = Host(
        cpu_model="x", logical_cpus=8, physical_cpus=None, cpu_limit=8.0, memory_bytes=2**34,
        memory_limit_bytes=2**60, gpus=(), system="Linux", python_version="3.11",
        torch_version=None,
    )  # fmt: skip
    return Recording(
        run_id="r", path=Path("r"), command=tuple(command), status="stopped", stop_reason="",
        exit_code=None, started_at="", duration_s=30.0, host=host, readings=(), step_time=None,
        deep_step=None, loading=None, total_work=None, threads=2, world_size=1,
        accumulation_steps=1, peak_rss_bytes=2**30, warnings=(), folder=folder,
    )  # fmt: skip


def row_on(
    record: Mapping[str, Any], provider: str, *, count: int = 1, pricing: str = "on-demand"
) -> dict[str, Any]:
    """The answer with its first row alone, on machines of a provider, an alternative beside it."""
    changed: dict[str, Any] = json.loads(json.dumps(record))
    owner, name, region, card, cards = MACHINES[provider]
    part = {
        "provider": owner, "instance_type": name, "region": region, "pricing": pricing,
        "count": count, "price_usd_per_h": 5.0123456789, "accelerator": card,
        "accelerators_per_instance": cards, "terms": "",
        "vcpus": 8, "memory_gib": 64.0,
    }  # fmt: skip
    row = changed["front"][0] | {"rank": 1, "configuration": [part], "completion": pricing}
    row["layout"] |= {"dp": int(cards) * count}
    elsewhere = {
        "configuration": [part | {"region": region[:-1] + "2", "price_usd_per_h": 5.5}],
        "kind": "region", "training_time_h": 2.5, "cost_usd": 13.75,
    }  # fmt: skip
    more = {**elsewhere, "configuration": [part | {"count": count + 1}]}
    changed["front"] = [row | {"alternatives": [elsewhere, more]}]
    changed["picks"] = {"best_value": 1}
    return changed


def started_with(program: str, text: str) -> list[str]:
    """The arguments that a shell's text calls a program with."""
    listed = f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{text}"
    done = subprocess.run(["bash", "-c", listed], capture_output=True, check=True, env={})
    return done.stdout.decode().split("\0")[:-1]


def ask(target: str, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """What a target's tool read in files, each with the answer that it is an export of."""
    python = Path(os.environ.get("EXPORT_TOOLS", f"{ROOT}/.venv-exports/bin/python"))
    if not python.exists() and "EXPORT_TOOLS" not in os.environ:
        pytest.skip("the tools are not installed: make test-exports")
    lines = [
        json.dumps({"target": target, "text": text, "machines": _machines(record)})
        for text, record in asked
    ]
    done = subprocess.run(
        [python, Path(__file__).parent / "export_tools" / "check.py"], input="\n".join(lines),
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert len(said) == 1, done.stderr[-3000:]
    answers: list[Any] = json.loads(said[0].removeprefix("ANSWERS "))
    return answers


def _machines(record: dict[str, Any]) -> list[Any]:
    rows = record.get("front", [])
    beside = [other for row in rows for other in row["alternatives"]]
    return [part for one in (*rows, *beside) for part in one["configuration"]]
