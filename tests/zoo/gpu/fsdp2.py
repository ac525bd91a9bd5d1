import os

import torch
import torch.distributed as dist
import torch.nn as nn
from gpt import GPT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):
    model = GPT(d=1024, n=8, h=16)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
for p in model.parameters():
    nn.init.normal_(p, std=0.02)
opt = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
for step in range(1000):
    x = torch.randint(0, 50304, (4, 1024), device="cuda")
    _, loss = model(x, x)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print(step, loss.item(), flush=True)
dist.destroy_process_group()
