import os

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

world = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))


class Block(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


model = nn.Sequential(
    nn.Linear(128, 1024), *[Block() for _ in range(4)], nn.Linear(1024, 128)
).cuda()
for b in list(model)[1:-1]:
    parallelize_module(b, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(b, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(100):
    loss = model(torch.rand(32, 64, 128, device="cuda")).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
