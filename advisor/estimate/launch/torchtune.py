"""A layout as options of a recipe of torchtune 0.6.1, as its ``recipes/configs`` name them."""

from __future__ import annotations

from typing import Final

from advisor.estimate.launch.launcher import torchrun
from advisor.planners.core import OPTIMIZERS, Layout, Precision, TrainingSetup, Transformer

_LOSSES: Final[dict[str, str]] = {
    "eager": "torch.nn.CrossEntropyLoss",
    "chunked": "torchtune.modules.loss.CEWithChunkedOutputLoss",
}
_ATTENTION: Final = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "projection": "output_proj",
}  # fmt: skip


def torchtune_line(
    layout: Layout, transformer: Transformer, *, nodes: int, per_node: int, setup: TrainingSetup,
    precision: Precision,
) -> str:  # fmt: skip
    """Return the command of a recipe; model and data are a configuration of the user's."""
    is_alone = nodes * per_node == 1
    kind = "lora" if setup.has_adapters else "full"
    optimizer = OPTIMIZERS[setup.optimizer]["torchtune"]
    if is_alone and "optimizer" in layout.offload:
        optimizer = "torchao.optim.CPUOffloadOptimizer"
    launcher = "" if is_alone else torchrun(nodes, per_node).removeprefix("torchrun") + " "
    words = [
        f"tune run {launcher.lstrip()}{kind}_finetune_"
        f"{'single_device' if is_alone else 'distributed'} --config ${{TUNE_CONFIG:?}}",
        f"tokenizer.max_seq_len={transformer.sequence} batch_size={layout.micro_batch}",
        f"gradient_accumulation_steps={layout.accumulation_steps}",
        f"dtype={'bf16' if setup.weights == 'bf16' else 'fp32'} optimizer={optimizer}",
        f"enable_activation_checkpointing={layout.recompute == 'full'}",
        f"enable_activation_offloading={'activations' in layout.offload}",
        f"loss={_LOSSES[setup.loss or 'chunked']} compile={setup.kernels == 'compiled'}",
    ]
    if is_alone and "gradients" in layout.offload:
        words.append("optimizer.offload_gradients=True")
    if not setup.has_adapters:
        words.append(f"optimizer_in_bwd={layout.updates_in_backward}")
    if not is_alone:
        words.append(f"fsdp_cpu_offload={'parameters' in layout.offload}")
    if setup.base_bits == 4:
        words.append("model.quantize_base=True")
    if setup.adapter_targets is not None:
        modules = ",".join(word for name, word in _ATTENTION.items() if setup.adapts(name))
        words.append(f"'model.lora_attn_modules=[{modules}]'")
        words.append(f"model.apply_lora_to_mlp={setup.adapts('up')}")
    return " ".join(words)
