import functools

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())
model = nn.Sequential(
    *[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)], nn.Linear(1024, 10)
)
model = FSDP(
    model,
    auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=100000),
    device_id=torch.cuda.current_device(),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
)
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(200):
    x = torch.rand(64, 1024).cuda()
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 10, (64,)).cuda())
    loss.backward()
    model.clip_grad_norm_(1.0)
    opt.step()
    opt.zero_grad()
