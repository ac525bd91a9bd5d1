import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group(backend="nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = DDP(
    nn.Sequential(nn.Linear(20, 4096), nn.ReLU(), nn.Linear(4096, 1)).to(local), device_ids=[local]
)
data = TensorDataset(torch.rand(20480, 20), torch.rand(20480, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 32, sampler=sampler, pin_memory=True)
opt = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range(50):
    sampler.set_epoch(epoch)
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x.to(local)), y.to(local))
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "snapshot.pt")
dist.destroy_process_group()
