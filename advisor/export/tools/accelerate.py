"""Hugging Face Accelerate: the file of ``accelerate config``, and ``accelerate launch``.

Read against accelerate 1.15. Accelerate spreads a script by data parallelism: DDP, FSDP2 (ZeRO-3)
or DeepSpeed (ZeRO-1 and 2). What a recorded script shards by the lines of ``parallel.py`` is only
started by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from advisor.estimate import fsdp_config
from advisor.export.launch import DEEPSPEED_FILE, Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported, NotExportableError
from advisor.export.templates import documents
from advisor.export.texts import yaml_text
from advisor.export.tools.ddp import on_framework
from advisor.export.tools.torchrun import HERE, shell_script

_FILE: Final = "accelerate.yaml"
_SCRIPT: Final = "run.sh"
# Arguments of the Trainer that the file stands for.
_FSDP: Final = "--fsdp --fsdp_config fsdp.json"
_DEEPSPEED: Final = f"--deepspeed {DEEPSPEED_FILE}"
_RANK: Final = '"${2:-${NODE_RANK:?say which machine this is, from 0}}"'


def write(pick: Pick, launch: Launch, _: Mapping[str, str]) -> Exported:
    """Return the file, and a script that starts it on a machine."""
    if launch.nodes > 1 and not pick.rented.accelerators:
        raise NotExportableError(
            "accelerate starts several machines without accelerators through MPI only",
            hint="export to torchrun",
        )
    launch = on_framework(pick, launch, "trainer", "deepspeed")
    files = {name: text for name, text in launch.files.items() if name != "fsdp.json"}
    is_alone = launch.nodes == 1
    launcher = f'accelerate launch --config_file "{HERE}/{_FILE}"'
    if not is_alone:
        launcher += f' --machine_rank {_RANK} --main_process_ip "$MASTER_ADDR"'
    text = launch.started_by(launcher, _FSDP, _DEEPSPEED)
    launch = replace(launch, text=text, files=files, launcher="accelerate")
    return Exported(
        target="accelerate",
        files={_SCRIPT: shell_script(pick, launch), _FILE: yaml_text(_config(pick, launch), pick)},
        run=f"bash {_SCRIPT}" if is_alone else f"bash {_SCRIPT} FIRST_MACHINE 0",
        notes=() if is_alone else ("the other machines are 1, 2, ... in place of 0",),
    )


def _config(pick: Pick, launch: Launch) -> Any:
    """Return what ``accelerate config`` would have asked for."""
    processes = launch.nodes * launch.per_node
    kind = _kind(pick, launch, processes)
    settings = fsdp_config(pick.layout) if kind == "FSDP" else {}
    names = {"cpu_offload": "fsdp_offload_params"}
    (found,) = documents(
        "accelerate", pick, launch, kind=kind, processes=processes, nodes=launch.nodes,
        is_deepspeed=kind == "DEEPSPEED", use_cpu=not pick.rented.accelerators,
        precision="" if kind == "DEEPSPEED" else _precision(launch),
        fsdp={names.get(name, f"fsdp_{name}"): value for name, value in settings.items()},
        is_zero_3=pick.layout.zero_stage == 3,
    )  # fmt: skip
    return found


def _precision(launch: Launch) -> str:
    """Return the products' precision, where no argument of the script's own says it."""
    is_own = launch.is_placeholder and not launch.is_trainer
    known = launch.work.precision if is_own and launch.work is not None else ""
    return known if known in ("bf16", "fp16") else "no"


def _kind(pick: Pick, launch: Launch, processes: int) -> str:
    if launch.is_placeholder and DEEPSPEED_FILE in launch.files:
        return "DEEPSPEED"
    if launch.is_placeholder and pick.layout.zero_stage == 3:
        return "FSDP"
    return "NO" if processes == 1 else "MULTI_GPU"
