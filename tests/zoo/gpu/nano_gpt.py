import os

import numpy as np
import torch
from gpt import GPT
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size, block_size, grad_accum, max_iters, eval_interval, eval_iters = (
    12,
    1024,
    40,
    600000,
    2000,
    20,
)
device, dtype, compile = (
    "cuda",
    "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16",
    True,
)
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    device = f"cuda:{int(os.environ['LOCAL_RANK'])}"
    torch.cuda.set_device(device)
    grad_accum //= int(os.environ["WORLD_SIZE"])
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
ctx = torch.amp.autocast(device_type="cuda", dtype=getattr(torch, dtype))
data = np.random.default_rng(0).integers(0, 50000, 1_000_000).astype(np.uint16)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
    )
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(
        device, non_blocking=True
    )


model = GPT().to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
params = [p for p in model.parameters() if p.requires_grad]
groups = [
    {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
    {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
if compile:
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[int(os.environ["LOCAL_RANK"])])


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        x, y = get_batch()
        with ctx:
            _, loss = model(x, y)
        losses[k] = loss.item()
    model.train()
    return losses.mean()


x, y = get_batch()
best, iter_num = 1e9, 0
while True:
    lr = 6e-4 * min(1, iter_num / 2000)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0 and iter_num:
        loss = estimate_loss()
        if loss < best:
            best = loss
            torch.save({"model": model.state_dict()}, "ckpt.pt")
    for micro in range(grad_accum):
        if ddp:
            model.require_backward_grad_sync = micro == grad_accum - 1
        with ctx:
            logits, loss = model(x, y)
            loss = loss / grad_accum
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * grad_accum:.4f}")
    iter_num += 1
    if iter_num > max_iters:
        break
