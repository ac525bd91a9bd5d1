"""Pretrain a Llama: one device, or FSDP2 over all ranks, as torchtitan does it by default."""

import argparse
import os
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

# hidden, layers, heads, key-value heads, feed-forward, vocabulary
SIZES = {
    "1b": (2048, 16, 32, 8, 8192, 128256),
    "7b": (4096, 32, 32, 32, 11008, 32000),
    "8b": (4096, 32, 32, 8, 14336, 128256),
    "70b": (8192, 80, 64, 8, 28672, 128256),
    "405b": (16384, 126, 128, 8, 53248, 128256),
}
SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
}


class Block(nn.Module):
    def __init__(self, d, heads, kv, ffn):
        super().__init__()
        self.heads, self.kv, self.width = heads, kv, d // heads
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.wq = nn.Linear(d, d, bias=False)
        self.wk = nn.Linear(d, kv * self.width, bias=False)
        self.wv = nn.Linear(d, kv * self.width, bias=False)
        self.wo = nn.Linear(d, d, bias=False)
        self.w1, self.w3 = nn.Linear(d, ffn, bias=False), nn.Linear(d, ffn, bias=False)
        self.w2 = nn.Linear(ffn, d, bias=False)

    def rotate(self, x, angles):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * angles).flatten(3).type_as(x)

    def forward(self, x, angles):
        b, t, _ = x.shape
        h = self.norm1(x)
        q = self.rotate(self.wq(h).view(b, t, self.heads, -1), angles).transpose(1, 2)
        k = self.rotate(self.wk(h).view(b, t, self.kv, -1), angles)
        v = self.wv(h).view(b, t, self.kv, -1)
        times = self.heads // self.kv
        k, v = (y.repeat_interleave(times, 2).transpose(1, 2) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self, d, layers, heads, kv, ffn, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList(Block(d, heads, kv, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocabulary, bias=False)
        self.width, self.recompute = d // heads, "none"

    def forward(self, ids):
        steps = torch.arange(ids.shape[1], device=ids.device).float()
        rates = 5e5 ** (-torch.arange(0, self.width, 2, device=ids.device).float() / self.width)
        turns = torch.outer(steps, rates)
        angles = torch.polar(torch.ones_like(turns), turns)[:, None]
        x = self.embedding(ids)
        for block in self.blocks:
            x = self.run(block, x, angles)
        return self.head(self.norm(x))

    def run(self, block, x, angles):
        if self.recompute == "none":
            return block(x, angles)
        if self.recompute == "full":
            return checkpoint(block, x, angles, use_reentrant=False)
        counts = defaultdict(int)

        def policy(context, func, *args, **kwargs):
            key = context.is_recompute, func
            counts[key] += 1
            is_second = func is torch.ops.aten.mm.default and counts[key] % 2 == 0
            is_saved = func in SAVED and not is_second
            return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

        return checkpoint(
            block,
            x,
            angles,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),
        )


parser = argparse.ArgumentParser()
parser.add_argument("--size", default="1b", choices=SIZES)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--sequence", type=int, default=2048)
parser.add_argument("--recompute", default="none", choices=("none", "selective", "full"))
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()
vocabulary = SIZES[args.size][-1]

if args.fsdp:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with torch.device("meta"):
        model = Llama(*SIZES[args.size])
    model.recompute = args.recompute
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
else:
    model = Llama(*SIZES[args.size]).to("cuda", torch.bfloat16)
    model.recompute = args.recompute

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(args.steps):
    ids = torch.randint(0, vocabulary, (args.batch, args.sequence), device="cuda")
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=True)
