"""Small recipes as people write them, by ourselves, each with the flags that say the same by hand.

A group of flags is what a reader of the file and of its tool's documentation would type.
"""

from __future__ import annotations

from typing import Final

AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_modules: [q_proj, v_proj]
datasets:
  - path: rows.jsonl
    type: alpaca
sequence_len: 1024
sample_packing: false
micro_batch_size: 4
gradient_accumulation_steps: 2
num_epochs: 3
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]
wandb_project: mine
learning_rate: 2e-4
"""
LLAMA_FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
deepspeed: ds_z2.json
dataset: mine
template: qwen
cutoff_len: 4096
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
num_train_epochs: 2.0
max_steps: 900
enable_liger_kernel: true
bf16: true
"""
DEEPSPEED = """\
{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
 "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto"}
"""
TORCHTUNE = """\
output_dir: /tmp/out
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, k_proj, v_proj, output_proj]
  apply_lora_to_mlp: false
  lora_rank: 64
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
batch_size: 2
gradient_accumulation_steps: 4
epochs: 2
max_steps_per_epoch: 100
optimizer: {_component_: torch.optim.AdamW, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
compile: true
dtype: bf16
enable_activation_checkpointing: true
enable_activation_offloading: false
"""
TRL = """\
model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: bfloat16
dataset_name: HuggingFaceH4/ultrachat_200k
max_length: 2048
packing: true
per_device_train_batch_size: 16
gradient_accumulation_steps: 1
gradient_checkpointing: true
num_train_epochs: 1
max_steps: 500
bf16: true
"""
ACCELERATE = """\
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, fsdp_offload_params: false}
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
LITGPT = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B
precision: bf16-true
quantize: bnb.nf4
devices: 1
lora_r: 16
lora_query: true
lora_value: true
data: {class_path: litgpt.data.Alpaca2k}
train: {global_batch_size: 8, micro_batch_size: 2, epochs: 2, max_seq_length: 512, max_steps: 50}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.0002}}
"""
TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
[compile]
enable = true
"""
MEGATRON = """\
#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DTYPE="bf16"
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336   # SwiGLU
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 4096 --max-position-embeddings 4096
    --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "bf16" ]]; then
    DTYPE_ARGS+=("--bf16")
elif [ "$DTYPE" = fp8 ]; then
    DTYPE_ARGS+=("--fp8-format hybrid")
else
    DTYPE_ARGS+=("--fp16")
fi
if [ -z "$NNODES" ]; then NNODES=9; fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${DTYPE_ARGS[@]} \\
    --micro-batch-size 1 --global-batch-size 128 --train-iters 2000 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
    --use-distributed-optimizer --recompute-activations \\
    --tokenizer-type NullTokenizer --vocab-size 128256 --lr 3e-4
"""
NEMO = """\
trainer: {devices: 8, num_nodes: 2, max_steps: 3000, precision: bf16}
model:
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: 8192
  num_attention_heads: 16
  activation: gelu
  vocab_size: 50000
  optim: {name: distributed_fused_adam, lr: 2e-4}
"""
NANOTRON = """\
model:
  dtype: bfloat16
  model_config: {hidden_size: 2048, intermediate_size: 8192, num_attention_heads: 32,
    num_hidden_layers: 16, num_key_value_heads: 8, tie_word_embeddings: true, vocab_size: 128256}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW}}
parallelism: {dp: 8, pp: 1, tp: 2, pp_engine: 1f1b}
tokens: {batch_accumulation_per_replica: 4, micro_batch_size: 2, sequence_length: 4096,
  train_steps: 10000}
"""
KOHYA = """\
pretrained_model_name_or_path = "/models/sd_xl_base_1.0.safetensors"
network_module = "networks.lora"
network_dim = 32
resolution = "1024,1024"
train_batch_size = 2
max_train_steps = 3000
mixed_precision = "bf16"
optimizer_type = "AdamW8bit"
cache_latents = true
"""
DIFFUSERS = """\
export MODEL_NAME="stabilityai/stable-diffusion-xl-base-1.0"
accelerate launch --mixed_precision="fp16" train_text_to_image_lora_sdxl.py \\
  --pretrained_model_name_or_path=$MODEL_NAME --dataset_name=me/pictures \\
  --resolution=1024 --train_batch_size=1 --rank=8 --max_train_steps=400 \\
  --mixed_precision="fp16" --use_8bit_adam
"""

ROWS = '{"instruction": "a"}\n' * 200
BRIDGE = """\
torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe qwen3_30b_a3b_peft_config \\
    --dataset llm-finetune train.global_batch_size=64 dataset.seq_length=1024
"""
COMPOSED = """\
defaults:
  - gpt@model
  - _self_
trainer: {devices: 8, num_nodes: 2, max_steps: 100, precision: bf16}
model:
  micro_batch_size: 2
  global_batch_size: ${oc.env:NOT_SET,256}
  encoder_seq_length: ${model.max_position_embeddings}
"""
GROUP = """\
num_layers: 12
hidden_size: 768
num_attention_heads: 12
ffn_hidden_size: 3072
micro_batch_size: 99
vocab_size: 50257
max_position_embeddings: 2048
"""

# A name of the file, what stands in it, the files beside it, and the flags that say the same.
CASES: Final[dict[str, tuple[str, dict[str, str], str]]] = {
    "axolotl.yml": (
        AXOLOTL, {"rows.jsonl": ROWS},
        "--stack trainer --model meta-llama/Llama-3.2-1B --sequence 1024 --micro-batch 4"
        " --batch 8 --total-samples 600 --precision bf16 --weights bf16"
        " --optimizer paged-adamw-8bit --recompute full --attention flash --loss chunked --lora 32"
        " --lora-targets query-value --base-bits 4 --zero 0",
    ),
    "factory.yaml": (
        LLAMA_FACTORY, {"ds_z2.json": DEEPSPEED},
        "--stack deepspeed --model Qwen/Qwen2.5-7B-Instruct --sequence 4096 --micro-batch 2"
        " --batch 16 --total-steps 900 --precision bf16 --weights fp32 --optimizer adamw"
        " --recompute full"
        " --attention flash --kernels fused --loss chunked --zero 2 --offload optimizer",
    ),
    "tune.yaml": (
        TORCHTUNE, {},
        "--stack torchtune --model llama-3.1-8b --sequence 4096 --micro-batch 2 --batch 8"
        " --total-steps 200 --precision bf16 --weights bf16 --optimizer adamw --recompute full"
        " --no-offload --loss chunked --kernels compiled --lora 64 --lora-targets attention"
        " --base-bits 16",
    ),
    "sft.yaml": (
        TRL, {},
        "--stack trl --model mistralai/Mistral-7B-v0.1 --sequence 2048 --micro-batch 16 --batch 16"
        " --total-steps 500 --precision bf16 --weights bf16 --optimizer adamw --recompute full"
        " --attention flash --loss chunked --zero 0",
    ),
    "sft.sh": (
        "accelerate launch --config_file fsdp.yaml sft.py sft.yaml --model_name_or_path gpt2\n",
        {"sft.yaml": TRL, "fsdp.yaml": ACCELERATE},
        "--stack trl --model gpt2 --sequence 2048 --micro-batch 16 --batch 256"
        " --total-steps 500 --precision bf16 --weights fp32 --optimizer adamw --recompute full"
        " --attention flash --loss chunked --zero 3 --no-offload",
    ),
    "litgpt.yaml": (
        LITGPT, {},
        "--stack ddp --model Llama-3.1-8B --sequence 512 --micro-batch 2 --batch 8"
        " --total-steps 50 --precision bf16 --weights bf16 --optimizer adamw --recompute none"
        " --kernels eager --lora 16 --lora-targets query-value --base-bits 4",
    ),
    "titan.toml": (
        TITAN, {},
        "--stack torchtitan --model Meta-Llama-3-8B --sequence 8192 --micro-batch 1 --batch 4"
        " --total-steps 1000 --precision bf16 --optimizer adamw --recompute selective"
        " --kernels compiled --loss fused --no-offload --tp 2",
    ),
    "megatron.sh": (
        MEGATRON, {},
        "--stack megatron-core --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336"
        " --gated --no-tied --vocabulary 128256 --sequence 4096 --micro-batch 1 --batch 128"
        " --total-steps 2000 --precision bf16 --optimizer adamw --zero 1 --recompute selective"
        " --no-offload --tp 2 --pp 2 --cp 1",
    ),
    "nemo.yaml": (
        NEMO, {},
        "--stack nemo --layers 24 --hidden 2048 --heads 16 --kv-heads 16 --ffn 8192 --tied"
        " --vocabulary 50176 --sequence 2048 --micro-batch 2 --batch 256 --total-steps 3000"
        " --precision bf16 --optimizer adamw --zero 1 --recompute none --tp 4 --pp 1",
    ),
    "nanotron.yaml": (
        NANOTRON, {},
        "--layers 16 --hidden 2048 --heads 32 --kv-heads 8 --ffn 8192 --gated --tied"
        " --vocabulary 128256 --sequence 4096 --micro-batch 2 --batch 64 --total-steps 10000"
        " --precision bf16 --weights fp32 --gradients fp32 --optimizer adamw --zero 1"
        " --recompute none --tp 2 --pp 1",
    ),
    "kohya.toml": (
        KOHYA, {},
        "--model sdxl --image 1024 --micro-batch 2 --batch 2 --total-steps 3000 --precision bf16"
        " --weights fp32 --optimizer adamw-8bit --lora 32 --lora-targets attention",
    ),
    "diffusers.sh": (
        DIFFUSERS, {},
        "--model stabilityai/stable-diffusion-xl-base-1.0 --image 1024 --micro-batch 1 --batch 1"
        " --total-steps 400 --precision fp16"
        " --weights fp32 --optimizer adamw-8bit --lora 8 --lora-targets attention",
    ),
    "bridge.sh": (
        BRIDGE, {},
        "--stack nemo --model Qwen/Qwen3-30B-A3B --sequence 1024 --micro-batch 1 --batch 64"
        " --total-steps 100 --precision bf16 --optimizer adamw --loss fused --recompute none"
        " --no-offload --zero 1 --tp 4 --pp 1 --cp 1 --ep 4 --etp 1 --lora 8"
        " --lora-targets attention --base-bits 16",
    ),
    "composed.yaml": (
        COMPOSED, {"gpt.yaml": GROUP},
        "--stack nemo --sequence 2048 --micro-batch 2 --batch 256 --total-steps 100"
        " --layers 12 --hidden 768 --heads 12 --kv-heads 12 --ffn 3072 --tied"
        " --vocabulary 50304 --precision bf16 --optimizer adamw --recompute none --tp 1 --pp 1",
    ),
    "sd.sh": (
        "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path=mine.safetensors"
        " --dataset_config=sets.toml --network_module=networks.lora --network_dim=16"
        " --max_train_epochs=2 --max_train_steps=9 --train_data_dir=rows.jsonl\n",
        {
            "sets.toml": "[general]\nresolution = 768\n[[datasets]]\nbatch_size = 4\n",
            "rows.jsonl": ROWS,
        },
        f"--model sdxl --image 768 --micro-batch 4 --batch 4"
        f" --total-samples {2 * len(ROWS.splitlines())}"
        " --precision fp32 --weights fp32 --optimizer adamw --lora 16 --lora-targets attention",
    ),
    "trl.sh": (
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file configs/deepspeed_zero2.yaml"
        " sft.py --model_name gpt2 --max_length 512 --bf16 --max_steps 10\n", {},
        "--model gpt2 --sequence 512 --micro-batch 8 --batch 16 --total-steps 10 --weights fp32"
        " --optimizer adamw --attention flash --stack deepspeed --precision bf16 --recompute full"
        " --loss chunked --zero 2 --no-offload",
    ),
}  # fmt: skip

# Files that start one of them on 16 devices: the batch follows.
STARTS: Final[dict[str, str]] = {
    "sky.yaml": """\
resources: {accelerators: "H100:8"}
num_nodes: 2
envs: {CFG: axolotl.yml}
run: |
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE \\
    -m axolotl.cli.train ${CFG}
""",
    "dstack.yml": """\
type: task
nodes: 2
commands: [pip install axolotl, axolotl train axolotl.yml]
resources: {gpu: "H100:8"}
""",
    "job.sbatch": """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:8
srun bash -c "axolotl train axolotl.yml"
""",
    "pytorchjob.yaml": """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: &pod
      replicas: 1
      template:
        spec:
          containers:
          - name: pytorch
            command: [axolotl, train, /config/axolotl.yml]
            resources: {limits: {nvidia.com/gpu: 8}}
    Worker: *pod
""",
}
