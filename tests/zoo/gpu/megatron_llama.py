"""Pretrain a Llama as Megatron-LM does: tensor and sequence parallel, pipelined, optimizer divided.

Weights and their gradients lie in buffers of 2 and 4 bytes a parameter; master weights and Adam's
moments are divided over the data-parallel ranks. Every rank runs its own stage; the head is the
last one's.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--pp", type=int, default=1)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument("--micro-batches", type=int, default=4)
parser.add_argument("--hidden", type=int, default=8192)
parser.add_argument("--heads", type=int, default=64)
parser.add_argument("--kv-heads", type=int, default=8)
parser.add_argument("--ffn", type=int, default=28672)
parser.add_argument("--vocabulary", type=int, default=128256)
args = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, world, tp, pp = dist.get_rank(), dist.get_world_size(), args.tp, args.pp
dp = world // (tp * pp)
stage = rank // (tp * dp)
device, half = torch.device("cuda"), torch.bfloat16
groups = [
    dist.new_group(range(s * tp * dp + d * tp, s * tp * dp + (d + 1) * tp))
    for s in range(pp)
    for d in range(dp)
]
TP = groups[rank // tp]
DP = [
    dist.new_group(range(s * tp * dp + t, (s + 1) * tp * dp, tp))
    for s in range(pp)
    for t in range(tp)
][stage * tp + rank % tp]
PIECES = 8  # of a weight's gradient, which is added to its buffer piece by piece


def gathered(x):
    if tp == 1:
        return x
    whole = torch.empty(x.shape[0] * tp, *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x.contiguous(), group=TP)
    return whole


def scattered(x):
    if tp == 1:
        return x
    mine = torch.empty(x.shape[0] // tp, *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(mine, x.contiguous(), group=TP)
    return mine


class Scatter(torch.autograd.Function):
    """The embedding's partial sums, each rank keeping its part of the sequence."""

    @staticmethod
    def forward(ctx, x):
        return scattered(x)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad)


class Product(torch.autograd.Function):
    """A product whose weight's gradient is accumulated in 32 bits where it lies."""

    @staticmethod
    def forward(ctx, x, weight, is_column):
        ctx.save_for_backward(x, weight)
        ctx.is_column = is_column
        return F.linear(gathered(x), weight) if is_column else scattered(F.linear(x, weight))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if ctx.is_column:
            x = gathered(x)
        else:
            grad = gathered(grad)
        back = grad @ weight
        rows = grad.flatten(0, -2), x.flatten(0, -2)
        size = -(-weight.shape[0] // PIECES)
        for at in range(0, weight.shape[0], size):
            weight.main_grad[at : at + size].add_(rows[0][:, at : at + size].t() @ rows[1])
        return (scattered(back) if ctx.is_column else back), None, None


class Gate(torch.autograd.Function):
    """SwiGLU in one kernel: nothing but its input is kept."""

    @staticmethod
    def forward(ctx, both):
        ctx.save_for_backward(both)
        a, b = both.chunk(2, -1)
        return F.silu(a).mul_(b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors[0].chunk(2, -1)
        back = torch.empty_like(ctx.saved_tensors[0])
        one, two = back.chunk(2, -1)
        torch.mul(F.silu(a), grad, out=two)
        one.copy_(torch.ops.aten.silu_backward(grad * b, a))
        return back


class Linear(nn.Module):
    def __init__(self, inside, outside, is_column):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outside, inside))
        self.is_column = is_column

    def forward(self, x):
        return Product.apply(x, self.weight, self.is_column)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        h = args.hidden
        self.width = h // args.heads
        self.sizes = [h // tp, args.kv_heads * self.width // tp, args.kv_heads * self.width // tp]
        self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
        self.qkv = Linear(h, sum(self.sizes), True)
        self.projection = Linear(h // tp, h, False)
        self.up = Linear(h, 2 * args.ffn // tp, True)
        self.down = Linear(args.ffn // tp, h, False)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).split(self.sizes, -1)
        q, k, v = (y.view(args.sequence, 1, -1, self.width).permute(1, 2, 0, 3) for y in parts)
        y = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        x = x + self.projection(y.permute(2, 0, 1, 3).flatten(2))
        return x + self.down(Gate.apply(self.up(self.norm2(x))))


class Loss(torch.autograd.Function):
    """Cross-entropy over a divided vocabulary, its gradient in place of the logits."""

    @staticmethod
    def forward(ctx, logits, targets):
        most = logits.max(-1).values.float()
        dist.all_reduce(most, dist.ReduceOp.MAX, group=TP)
        logits.sub_(most[..., None]).exp_()
        total = logits.sum(-1, dtype=torch.float32)
        dist.all_reduce(total, group=TP)
        ctx.save_for_backward(logits.div_(total[..., None]), targets)
        return total.log().mean()

    @staticmethod
    def backward(ctx, grad):
        shares, targets = ctx.saved_tensors
        rows = shares.flatten(0, 1)
        rows[torch.arange(rows.shape[0], device=device), targets.flatten() % rows.shape[1]] -= 1
        return shares, None


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        rows = -(-args.vocabulary // (128 * tp)) * 128
        if stage == 0:
            self.embedding = nn.Embedding(rows, args.hidden)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers // pp))
        if stage == pp - 1:
            self.norm, self.head = nn.RMSNorm(args.hidden), Linear(args.hidden, rows, True)

    def forward(self, x, targets):
        if stage == 0:
            x = Scatter.apply(self.embedding(x))
        for block in self.blocks:
            x = block(x)
        return Loss.apply(self.head(self.norm(x)), targets) if stage == pp - 1 else x


torch.set_default_dtype(half)
model = Stage().to(device)
parameters = list(model.parameters())
count = sum(p.numel() for p in parameters)
gradients = torch.zeros(-(-count // dp) * dp, dtype=torch.float32, device=device)
at = 0
for p in parameters:
    p.main_grad = gradients[at : at + p.numel()].view_as(p)
    at += p.numel()
    if p.dim() == 1 or p is getattr(getattr(model, "embedding", None), "weight", None):

        def add(p):
            p.main_grad.add_(p.grad)
            p.grad = None

        p.register_post_accumulate_grad_hook(add)
weights = torch.empty_like(gradients, dtype=half)
master = nn.Parameter(torch.zeros(gradients.numel() // dp, dtype=torch.float32, device=device))
for p, piece in zip(
    parameters, weights.split([p.numel() for p in parameters] + [weights.numel() - count])
):
    p.data = piece.view_as(p)
optimizer = torch.optim.AdamW([master], lr=3e-4, fused=True)


def shard(buffer):
    return buffer.view(dp, -1)[rank % (tp * dp) // tp]


shape = (args.sequence // tp, 1, args.hidden)


def forward(kept):
    ids = torch.randint(0, args.vocabulary, (args.sequence, 1), device=device)
    x = ids
    if stage > 0:
        x = torch.empty(shape, dtype=half, device=device)
        dist.recv(x, rank - tp * dp)
        x.requires_grad_()
    out = model(x, ids)
    if stage < pp - 1:
        dist.send(out.detach(), rank + tp * dp)
    kept.append((x, out))


def backward(kept):
    x, out = kept.pop(0)
    grad = None
    if stage < pp - 1:
        grad = torch.empty(shape, dtype=half, device=device)
        dist.recv(grad, rank + tp * dp)
    out.backward(grad)
    if stage > 0:
        dist.send(x.grad, rank - tp * dp)


for step in range(1000):
    kept = []
    gradients.zero_()
    for _ in range(min(pp - 1 - stage, args.micro_batches)):
        forward(kept)
    for _ in range(args.micro_batches - len(kept)):
        forward(kept)
        backward(kept)
    while kept:
        backward(kept)
    dist.reduce_scatter_tensor(shard(gradients), gradients, group=DP)
    master.grad = shard(gradients)
    master.grad.div_(master.grad.norm().clamp_(min=1.0))
    optimizer.step()
    master.grad = None
    shard(weights).copy_(master.detach())
    dist.all_gather_into_tensor(weights, shard(weights), group=DP)
    print(step, flush=True)
