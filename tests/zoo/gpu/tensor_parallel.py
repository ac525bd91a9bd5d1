import os

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


model = nn.Sequential(*[MLP() for _ in range(4)]).to("cuda")
for m in model:
    parallelize_module(m, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
opt = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)
for step in range(100):
    x = torch.rand(64, 2048, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
