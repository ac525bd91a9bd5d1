"""What docstrings and comments name in code's quotes is there: modules and what they hold."""

from __future__ import annotations

import ast
import builtins
import io
import itertools
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("advisor", "planners", "collectors", "lab", "tests")
LEFT_OUT = (
    *(("advisor", link) for link in ("planners", "collectors", "lab", "datasets")),
    ("advisor", "trained_models"), ("tests", "zoo"),
)  # fmt: skip
NAMED = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?``")
FILES = (".py", ".pyi", ".js", ".json", ".csv", ".md", ".toml")
WORD = re.compile(r"[A-Za-z_]\w*")
# Symbols of an equation with an index, ``T_i``, and places for a word, ``ADVISOR_NAME``.
NO_NAME = re.compile(r"\w+_[a-z]|\w+_(?:NAME|GROUP|CLASS)")
# Whose names besides ours are written so, by what is quoted.
OTHERS: Final[Mapping[str, str]] = {
    "PyTorch": "torch.utils.checkpoint torch._C._ensureCUDADeviceGuardSet mixed_precision_reduce"
    " set_requires_gradient_sync create_selective_checkpoint_contexts exp_avg_sq_sqrt ns_steps"
    " torch._functorch.partitioners torch.cuda.memory._snapshot _cp_options.enable_load_balance"
    " FSDP2_tutorial torch.cuda.FloatTensor weight_norm",
    "Python and Linux": "csv.field_size_limit run_delay tcp_info NETLINK_SOCK_DIAG"
    " clock_getcpuclockid",
    "transformers and TRL": "max_shard_size load_in_4bit load_in_8bit"
    " SFTConfig.gradient_checkpointing galore_optim_kwargs is_sharded_qlora"
    " _CHUNKED_LM_HEAD_CHUNK_SIZE",
    "peft and bitsandbytes": "target_modules autocast_adapter_dtype"
    " TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING peft.prepare_model_for_kbit_training",
    "torchtune": "num_output_chunks lora_attn_modules apply_lora_to_mlp",
    "recipes' tools":
    " Accelerator.prepare_model accumulate_grad_in_fp32 add_sd_models_arguments"
    " add_training_arguments base_config.py cast_trainable_params_to_fp32 data_args.py"
    " dataset_info.json deepspeed_configs enums.py finetuning_args.py"
    " flux_train_network.py fsdp2_prepare_model fsdp_utils.py"
    " huggingface_hub.constants job_config.py lora_finetune_distributed"
    " megatron_gpt_config.yaml model_args.py model_config.py models_config.py"
    " parallelism_config.py parse_args pretrain.py pretrain_gpt.py"
    " sdxl_train_network.py sft_config.py torch_dtype training_args.py"
    " utils/fsdp_utils.py",
    "DeepSpeed": "partition_activations reduce_bucket_size pipe_buffers fwd_cache"
    " inplace_backward",
    "Megatron-LM and NeMo": "nemo_longseq fsdp_double_buffer nccl_ub tp_comm_overlap"
    " overlap_p2p_comm account_for_embedding_in_pipeline_split deallocate_pipeline_outputs"
    " DistributedDataParallelConfig.bucket_size moe_flex_dispatcher_backend moe_a2a_overlap"
    " moe_router_force_load_balancing overlap_moe_expert_parallel_comm overlap_param_gather"
    " custom_fsdp gradient_accumulation_fusion is_first_microbatch",
    "MLPerf": "config_fp8.sh",
    "torchtitan": "max_reserved_gib",
    "SimuMax": "b200_bf16_ceperm.json",
    "Cephalo and Zorse": "split_workload.py runtime_estimator.py min_params"
    " zorse_planner.py zorse_optimizer asymmetric_pipeline profile_models.sh",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file: what it says of itself, by line, the words of its code, and what it defines."""

    words: tuple[tuple[int, str], ...]
    code: frozenset[str]
    defined: frozenset[str]


@cache
def sources() -> dict[Path, Source]:
    """Return every Python file that is ours; the links of the checkout are followed once."""
    found = {}
    for room in ROOMS:
        for path in sorted([*(ROOT / room).rglob("*.py"), *(ROOT / room).rglob("*.pyi")]):
            if path.relative_to(ROOT).parts[:2] not in LEFT_OUT and path != Path(__file__):
                found[path.relative_to(ROOT)] = _source(path.read_text("utf-8"))
    return found


def _source(text: str) -> Source:
    said, tree = {}, ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                said[node.body[0].lineno] = docstring
    code: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            said[line] = f"{said.get(line, '')}\n{token.string}"[not said.get(line) :]
        elif token.type == tokenize.NAME or (token.type == tokenize.STRING and line not in said):
            code |= set(WORD.findall(token.string))
    defined = (one.name for one in tree.body if isinstance(one, ast.ClassDef | ast.FunctionDef))
    return Source(words=tuple(said.items()), code=frozenset(code), defined=frozenset(defined))


@cache
def everything() -> frozenset[str]:
    """Return every word of code: names, what strings hold, files and folders, fields of data."""
    found = {*dir(builtins), *keyword.kwlist}
    for path, source in sources().items():
        found |= {*path.with_suffix("").parts, *source.code}
    for kind in ("advisor/**/*.js", "datasets/**/*.csv"):
        for page in ROOT.glob(kind):
            with page.open(encoding="utf-8") as lines:
                found |= set(WORD.findall(next(lines) if page.suffix == ".csv" else lines.read()))
    return frozenset(found)


@cache
def modules() -> dict[str, list[frozenset[str]]]:
    """Return the name of each module and folder -> the words of those that are called so."""
    found = defaultdict(list)
    for path, source in sources().items():
        found[path.stem].append(source.code)
        for folder in path.with_suffix("").parts[:-1]:
            found[folder].append(source.code | {path.stem, *path.parts})
    return found


@cache
def defined() -> frozenset[str]:
    """Return the functions and classes that some module has."""
    return frozenset().union(*(source.defined for source in sources().values()))


def is_there(name: str) -> bool:
    """Whether every part of a name is a word of code, and a module holds what is said of it.

    What no module defines is a field of something that is called as a module is.
    """
    if name.endswith(FILES):
        return Path(name).stem in everything()
    parts = name.split(".")
    if any(part not in everything() for part in parts):
        return False
    return all(
        any(held in code for code in modules()[module])
        for module, held in itertools.pairwise(parts)
        if module in modules() and held in defined()
    )


def absent() -> dict[str, list[str]]:
    """Return what is named and is not there, and where."""
    known = {name for names in OTHERS.values() for name in names.split()}
    found = defaultdict(list)
    for path, source in sources().items():
        for line, text in source.words:
            for match in NAMED.finditer(text):
                name, is_module = match[1], text[: match.start()].endswith("module ")
                if is_module and name.rpartition(".")[2] not in modules():
                    found[name].append(str(path))
                if not ("_" in name or "." in name) or name in known or NO_NAME.fullmatch(name):
                    continue
                if not is_there(name):
                    at = line + text[: match.start()].count("\n")
                    found[name].append(f"{path}:{at}")
    return dict(found)


def test_every_name_in_words_is_one() -> None:
    assert absent() == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("planners.spot.availability", True),
        ("availability.replay", True),
        ("planners.stage_partition", False),
        ("availability.recommend", False),
        ("no_such_module", False),
        ("work.micro_batch", True),
    ],
)
def test_a_module_holds_what_is_said_of_it(name: str, expected: bool) -> None:
    assert is_there(name) is expected
