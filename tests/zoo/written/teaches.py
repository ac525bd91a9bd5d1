# rehearsed: batch=8 parameters=5184 steps=640
"""A teacher that follows its student: several crops, a queue, schedules by step, a logger's loop."""

import math
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, number):
        return [torch.rand(12) for _ in range(4)], number


class Logger:
    def log_every(self, iterable, every, header):
        for i, one in enumerate(iterable):
            yield one
            if i % every == 0:
                print(header, i, "of", len(iterable), torch.cuda.max_memory_allocated() / 2**20)


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.GELU())
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(32, 64, bias=False))

    def forward(self, crops):
        if not isinstance(crops, list):
            crops = [crops]
        return self.head(self.backbone(torch.cat(crops)))


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 64))
        self.register_buffer("queue", nn.functional.normalize(torch.randn(64, 256), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, student, teacher):
        told = nn.functional.softmax((teacher - self.center) / 0.04, dim=-1).detach().chunk(2)
        terms = [
            torch.sum(-q * nn.functional.log_softmax(v / 0.1, dim=-1), dim=-1).mean()
            for iq, q in enumerate(told) for at, v in enumerate(student.chunk(4)) if at != iq
        ]  # fmt: skip
        self.follow(teacher)
        return (
            sum(terms) / len(terms)
            + torch.einsum("nc,ck->nk", student, self.queue.clone().detach()).square().mean()
        )

    @torch.no_grad()
    def follow(self, teacher):
        center = teacher.sum(dim=0, keepdim=True)
        dist.all_reduce(center)
        self.center = self.center * 0.9 + center / (len(teacher) * dist.get_world_size()) * 0.1
        gathered = [torch.ones_like(teacher) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, teacher)
        keys = torch.cat(gathered)
        at = int(self.queue_ptr)
        self.queue[:, at : at + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (at + keys.shape[0]) % 256


dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", world_size=1, rank=0)
torch.cuda.set_device(0)
student, teacher = Wrapper().cuda(), Wrapper().cuda()
student = nn.SyncBatchNorm.convert_sync_batchnorm(student)
student = nn.parallel.DistributedDataParallel(student, device_ids=[0])
teacher.load_state_dict(student.module.state_dict())
for parameter in teacher.parameters():
    parameter.requires_grad = False
criterion = Loss().cuda()
groups = [
    {"params": [one for one in student.parameters() if one.dim() > 1]},
    {"params": [one for one in student.parameters() if one.dim() == 1], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups)
scaler = torch.cuda.amp.GradScaler()
loader = DataLoader(Crops(), 8, shuffle=True, num_workers=2, drop_last=True, pin_memory=True)
rates = np.cos(np.linspace(0, np.pi, 10 * len(loader)))
for epoch in range(10):
    for it, (images, _) in enumerate(Logger().log_every(loader, 10, "epoch %d" % epoch)):
        it += len(loader) * epoch
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + rates[it])
        images = [one.cuda(non_blocking=True) for one in images]
        with torch.cuda.amp.autocast(scaler is not None):
            loss = criterion(student(images), teacher(images[:2]))
        if not math.isfinite(loss.item()):
            print("loss is", loss.item())
            sys.exit(1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for name, parameter in student.named_parameters():
            norm = parameter.grad.data.norm(2)
            if 3.0 / (norm + 1e-6) < 1:
                parameter.grad.data.mul_(3.0 / (norm + 1e-6))
            if epoch < 1 and "original0" in name:
                parameter.grad = None
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            pairs = zip(student.module.parameters(), teacher.parameters(), strict=True)
            for own, kept in pairs:
                kept.data.mul_(0.996).add_((1 - 0.996) * own.detach().data)
