"""What the tests of advice share: facts with a recording."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.advice.facts import Facts
from advisor.collectors.format.recording import Host, Reading, Recording
from advisor.planners.core.errors import GIB


def readings(cores: float, memory: float, seconds: int = 30) -> tuple[Reading, ...]:
    return tuple(
        Reading(
            t_s=0.2 * i, processes=1, cpu_s=0.2 * i * cores, run_delay_s=0.0,
            rss_bytes=int(2 * memory), pss_bytes=int(memory), disk_read_bytes=0,
            disk_write_bytes=0, network_received_bytes=0, network_sent_bytes=0, throttled_s=0.0,
            pressure_fraction=None,
        )
        for i in range(5 * seconds)
    )  # fmt: skip


def recorded(facts: Facts, **changes: Any) -> Facts:
    """The facts with a recording of a job on 8 cores and 16 GiB that uses 1.5 and 3."""
    host = Host(
        cpu_model="x", logical_cpus=8, physical_cpus=None, cpu_limit=8.0, memory_bytes=16 * GIB,
        memory_limit_bytes=2**60, gpus=(), system="Linux", python_version="3.11",
        torch_version=None,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "run_id": "r", "path": Path("r"), "command": (), "status": "stopped", "stop_reason": "",
        "exit_code": None, "started_at": "", "duration_s": 30.0, "host": host,
        "readings": readings(1.5, 3 * GIB), "step_time": None, "deep_step": None, "loading": None,
        "total_work": None, "threads": 2, "world_size": 1, "accumulation_steps": 1,
        "peak_rss_bytes": 3 * GIB, "warnings": (),
    }  # fmt: skip
    return replace(facts, recording=Recording(**(usual | changes)))
