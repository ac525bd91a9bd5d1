"""Commands for a layout of a recorded script: torchrun, and additions to the script.

The script is its owner's; what is printed is the launcher's line and a short file with the calls
of PyTorch that spread this model, by the names of its own modules. Its lines go where the script
has a ``model`` (and an ``optimizer``), in the order in which they stand. What the script's own
software does already is left out: a Trainer and DeepSpeed are given their settings instead.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal

from advisor.answer import Command
from advisor.collectors.errors import shell_line
from advisor.collectors.format import Told
from advisor.estimate.launch.launcher import torchrun, with_variables
from advisor.estimate.launch.trainer import deepspeed_config, fsdp_config
from advisor.planners.core import Layout, Precision
from advisor.planners.layouts import RECORDED, Framework, broken_rule
from advisor.planners.step import Unit, is_normalisation, layer_kind

# Lines that are put into a script, by what they are for.
_SNIPPETS = tomllib.loads(Path(__file__).with_name("recorded_script.toml").read_text("utf-8"))
DEEPSPEED_LINES: str = _SNIPPETS["deepspeed"]

# The call by which a script spreads its model over ranks already; empty for none.
SpreadBy = Literal["", "ddp", "fsdp"]
_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
# What starts a script's ranks, as a command or as a module of Python's.
_LAUNCHERS = frozenset({
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
    "accelerate.commands.launch", "deepspeed",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """A recorded script: its command line, the units of its model, and what it computes in.

    ``told`` is what it was told of devices, and what spreads its model. ``parts`` is empty where
    the names of the model's modules are not known.
    """

    command: tuple[str, ...]
    parts: tuple[Unit, ...]
    precision: Precision
    told: Told = field(default_factory=Told)


def script_of(command: Sequence[str]) -> str:
    """Return the recorded script with its arguments, without the interpreter.

    A value that the recording has only a hash of comes from a variable.

    >>> script_of(["/usr/bin/python3.11", "train.py", "--epochs", "4"])
    'train.py --epochs 4'
    """
    words = script_words(command)
    return with_variables(shell_line(words), words) or "train.py"


def script_words(command: Sequence[str]) -> list[str]:
    """Return the words of a recorded script and its arguments: no interpreter, no launcher.

    A launcher's options end where a script's name stands; without one the words are left. A
    notebook is named as the script that Jupyter exports it to.

    >>> script_words(["torchrun", "--nproc-per-node", "2", "train.py", "--epochs", "4"])
    ['train.py', '--epochs', '4']
    >>> script_words(["python", "-m", "torch.distributed.run", "src/train.py"])
    ['src/train.py']
    >>> script_words(["python", "explore.ipynb", "--epochs", "4"])
    ['explore.py', '--epochs', '4']
    """
    words = list(command)
    if words and _PYTHON.fullmatch(PurePath(words[0]).name):
        words = words[1:]
    is_launched = bool(words) and PurePath(words[0]).name in _LAUNCHERS
    if is_launched or (words[:1] == ["-m"] and words[1:2] and words[1] in _LAUNCHERS):
        place = next((n for n, word in enumerate(words) if word.endswith(".py")), 0)
        words = words[place:]
    if words and words[0].endswith(".ipynb"):
        words[0] = words[0].removesuffix(".ipynb") + ".py"
    return words


def framework_of(layout: Layout) -> Framework | None:
    """Return what runs a layout of a recorded script: PyTorch, DeepSpeed, or nothing."""
    return next((f for f in RECORDED if broken_rule(layout, f) is None), None)


def runnable(layout: Layout) -> str | None:
    """Return why nothing runs a layout of a recorded script; None where something does."""
    if framework_of(layout):
        return None
    found = (broken_rule(layout, framework) for framework in RECORDED)
    reasons = "; ".join(rule.reason for rule in found if rule)
    return f"no released framework runs this layout; {reasons}"


def command(
    script: Script, layout: Layout, stages: Sequence[int], *, group: str, nodes: int, per_node: int
) -> Command:
    """Return how to run a layout of the recorded script on equal machines."""
    launcher = f"{torchrun(nodes, per_node)} {script_of(script.command)}"
    samples = "sample" if layout.micro_batch == 1 else "samples"
    batch = f"  # {layout.micro_batch} {samples} a rank and pass"
    if layout.accumulation_steps > 1:
        batch += f", {layout.accumulation_steps} passes a step"
    files = _files(script, layout, stages)
    if script.told.by_hand:
        first = f"# first: {script.told.by_hand}\n"
        files = {"parallel.py": "", **files}
        files["parallel.py"] = first + files["parallel.py"]
    return Command(group=group, text=launcher + batch, files=files)


def _files(script: Script, layout: Layout, stages: Sequence[int]) -> dict[str, str]:
    """Return what is written beside the script, and added to it."""
    is_replicas = layout.devices == layout.dp
    if script.told.stack == "trainer" and is_replicas and layout.devices > 1:
        return _for_trainer(script, layout)
    has_deepspeed = script.told.stack == "deepspeed" and broken_rule(layout, "deepspeed") is None
    if framework_of(layout) == "deepspeed" or has_deepspeed:
        config = deepspeed_config(layout, precision=script.precision, is_script=True)
        text = _recomputed(script.parts) if layout.recompute == "full" else ""
        text += "" if has_deepspeed else DEEPSPEED_LINES
        files = {"parallel.py": text} if text else {}
        return files | {"ds_config.json": json.dumps(config, indent=2)}
    text = parallel_file(script.parts, layout, stages, spread_by=_spread_by(script.told))
    return {"parallel.py": text} if text else {}


def _for_trainer(script: Script, layout: Layout) -> dict[str, str]:
    """Return the settings of Hugging Face's Trainer, which spreads the model by itself."""
    lines = [
        "# the Trainer spreads the model; its TrainingArguments take",
        f"per_device_train_batch_size={layout.micro_batch},",
        f"gradient_accumulation_steps={layout.accumulation_steps},",
    ]
    is_fsdp = broken_rule(layout, "trainer") is None and layout.zero_stage == 3
    if layout.recompute == "full" and not is_fsdp:
        lines.append("gradient_checkpointing=True,")
    files = {}
    if is_fsdp:
        lines += ['fsdp="full_shard",', 'fsdp_config="fsdp.json",']
        files["fsdp.json"] = json.dumps(fsdp_config(layout), indent=2)
    elif layout.zero_stage or layout.offload:
        lines.append('deepspeed="ds_config.json",')
        files["ds_config.json"] = json.dumps(
            deepspeed_config(layout, precision=script.precision), indent=2
        )
    return {"training_arguments.py": "\n".join(lines) + "\n", **files}


# Names in a script of what wraps a model in replicas for it, where nobody asks for shards.
_REPLICATES = frozenset({"Accelerator", "Fabric", "LightningModule"})


def _spread_by(told: Told) -> SpreadBy:
    """Return how a script spreads its model over ranks already."""
    if told.stack == "fsdp":
        return "fsdp"
    return "ddp" if told.stack == "ddp" or _REPLICATES & set(told.spreads) else ""


def parallel_file(
    parts: Sequence[Unit], layout: Layout, stages: Sequence[int], *, spread_by: SpreadBy = ""
) -> str:
    """Return the lines that spread the model over ranks, in the order in which they go in.

    ``spread_by``: what the script does so already; those lines are left out.
    """
    is_spread = spread_by == _spread_in(layout)
    text = "# one device: the script as it is\n"
    if layout.devices > 1:
        text = "" if is_spread else _SNIPPETS["ranks"]
    text += _mesh(layout)
    if layout.tp > 1:
        text += tensor_parallel_plan(parts)
    if layout.recompute == "full" and layout.pp == 1:
        text += _recomputed(parts)
    if "activations" in layout.offload:
        text += _SNIPPETS["save_on_host"]
    if layout.pp > 1:
        return text + _pipelined(parts, layout, stages)
    if layout.zero_stage == 3:
        return text if is_spread else text + _fully_sharded(parts, layout)
    if layout.dp > 1 and not is_spread:
        mesh = ', device_mesh=mesh["dp"]' if layout.tp > 1 else ""
        text += (
            "from torch.nn.parallel import DistributedDataParallel\n\n"
            f"model = DistributedDataParallel(model{mesh})\n"
        )
    if layout.dp > 1 and layout.zero_stage == 1:
        text += _SNIPPETS["sharded_optimizer"].format(group="None")
    return text


def _spread_in(layout: Layout) -> SpreadBy | None:
    """Return which one call makes a layout, over all ranks alike; None where it takes more."""
    if layout.devices != layout.dp:
        return None
    if layout.zero_stage != 3:
        return "ddp"
    is_whole = not layout.shard_group or layout.shard_group == layout.dp
    return "fsdp" if is_whole and "parameters" not in layout.offload else None


def _mesh(layout: Layout) -> str:
    """Return the grid of ranks, where groups other than "all ranks" are needed."""
    names, sizes = [], []
    copies = layout.dp // layout.shard_group if layout.shard_group else 1
    if layout.pp > 1:
        names, sizes = ["pp", "dp"], [layout.pp, layout.dp]
    elif layout.zero_stage == 3 and copies > 1 and layout.shard_group:
        names, sizes = ["copies", "dp"], [copies, layout.shard_group]
    elif layout.tp > 1:
        names, sizes = ["dp"], [layout.dp]
    if layout.tp > 1:
        names, sizes = [*names, "tp"], [*sizes, layout.tp]
    if not names:
        return ""
    return (
        f'mesh = init_device_mesh("cuda", ({", ".join(map(str, sizes))}), '
        f"mesh_dim_names=({', '.join(json.dumps(n) for n in names)}))\n"
    )


def _recomputed(parts: Sequence[Unit], *, is_stage: bool = False) -> str:
    if not parts:
        return "# recompute every layer: model.gradient_checkpointing_enable(), or as yours says\n"
    blocks = [u for u in parts if u.is_block] or parts
    names = listed([module_name(u.name) for u in blocks])
    found = f"[model.get_submodule(name) for name in {names}]"
    if is_stage:  # a stage has some of them
        found = f"[m for name, m in model.named_modules() if name in {names}]"
    return (
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (\n"
        "    apply_activation_checkpointing,\n)\n\n"
        f"recomputed = {found}\n"
        "apply_activation_checkpointing(model, check_fn=lambda m: m in recomputed)\n"
    )


def _fully_sharded(parts: Sequence[Unit], layout: Layout) -> str:
    """Shard by blocks with FSDP2: over all ranks, those beside tensor parallelism, or groups."""
    imports, options = ["fully_shard"], ""
    if layout.shard_group and layout.shard_group < layout.dp:
        options += ', mesh=mesh["copies", "dp"]'
    elif layout.tp > 1:
        options += ', mesh=mesh["dp"]'
    if "parameters" in layout.offload:
        imports = ["CPUOffloadPolicy", *imports]
        options += ", offload_policy=CPUOffloadPolicy()"
    names = [module_name(u.name) for u in parts if u.is_block]
    lines = [
        f"for name in {listed(names)}:",
        f"    fully_shard(model.get_submodule(name){options})",
    ]
    if not parts:
        names = ["layer"]
        lines = [f"for layer in layers:  # the model's own\n    fully_shard(layer{options})"]
    return f"from torch.distributed.fsdp import {', '.join(imports)}\n\n" + "\n".join(
        [*(lines if names else []), f"fully_shard(model{options})\n"]
    )


def _pipelined(parts: Sequence[Unit], layout: Layout, stages: Sequence[int]) -> str:
    """Cut a traced model into stages; what wraps modules is put round a stage after that."""
    schedule = "ScheduleGPipe" if layout.schedule == "gpipe" else "Schedule1F1B"
    text = (
        "from torch.distributed.pipelining import (\n"
        f"    PipelineStage,\n    {schedule},\n    SplitPoint,\n    pipeline,\n)\n\n"
        f"split = {{{split_points(parts, stages)}}}\n"
        "pipe = pipeline(model, mb_args=(one_micro_batch,), split_spec=split)\n"
        'place = mesh.get_local_rank("pp")\n'
        "model = pipe.get_stage_module(place)\n"
    )
    if layout.recompute == "full":
        text += _recomputed(parts, is_stage=True)
    if layout.dp > 1:
        text += (
            "from torch.nn.parallel import DistributedDataParallel\n\n"
            'model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))\n'
        )
    if layout.zero_stage == 1:
        text += _SNIPPETS["sharded_optimizer"].format(group='mesh.get_group("dp")')
    elif layout.zero_stage == 0:
        text += "# the optimizer is made of this stage: model.parameters()\n"
    return text + (
        f"stage = PipelineStage(model, place, {layout.pp}, device, "
        'group=mesh.get_group("pp"))\n'
        f"schedule = {schedule}(stage, n_microbatches={layout.accumulation_steps}, loss_fn=loss)"
    )


def split_points(parts: Sequence[Unit], stages: Sequence[int]) -> str:
    """Return where the stages begin, as ``torch.distributed.pipelining`` takes it."""
    names, place = [], 0
    for size in stages[:-1]:
        place += size
        name = json.dumps(module_name(parts[place].name), ensure_ascii=False)
        names.append(f"{name}: SplitPoint.BEGINNING")
    return ", ".join(names)


def module_name(name: str) -> str:
    """Return a module's name inside the model, without the class that stands before it.

    Recordings of several root modules (model and loss) prefix the root's class, and attributes
    are not written like classes.

    >>> module_name("Net.layers.0")
    'layers.0'
    """
    head, _, rest = name.partition(".")
    return rest if rest and head[:1].isupper() else name


def listed(names: Sequence[str]) -> str:
    """Return names as Python, counted ones in short.

    >>> listed(["h.0", "h.1", "h.2"])
    '[f"h.{i}" for i in range(3)]'
    """
    stem = names[0].rpartition(".")[0] if names else ""
    is_plain = re.fullmatch(r"[\w.-]*", stem) is not None  # a name may hold quotes and braces
    if is_plain and len(names) > 1 and list(names) == [f"{stem}.{i}" for i in range(len(names))]:
        return f'[f"{stem}.{{i}}" for i in range({len(names)})]'
    return json.dumps(list(names), ensure_ascii=False)


def tensor_parallel_plan(parts: Sequence[Unit]) -> str:
    """Divide the products of a block: those that end a half row-wise, the others column-wise.

    The lines expect a ``mesh`` with a dimension "tp".
    """
    block = next(u for u in parts if u.is_block)
    lines = []
    layers = block.layers
    for i, layer in enumerate(layers):
        if layer_kind(layer) != "matmul":
            continue
        after = [x for x in layers[i + 1 :] if layer_kind(x) == "matmul" or is_normalisation(x)]
        ends = not after or is_normalisation(after[0])
        way = "RowwiseParallel" if ends else "ColwiseParallel"
        name = re.sub(r"(^|\.)\d+\.", r"\1*.", module_name(layer.name), count=1)
        lines.append(f"    {json.dumps(name, ensure_ascii=False)}: {way}(),")
    return "\n".join(
        [
            "from torch.distributed.tensor.parallel import (",
            "    ColwiseParallel,\n    RowwiseParallel,\n    parallelize_module,\n)",
            "",
            "# A fused query-key-value projection must be split by heads in the block's forward.",
            'parallelize_module(model, mesh["tp"], {',
            *lines,
            "})\n",
        ]
    )
