import torch
import torch.nn as nn
from gpt import Block
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(Block(1024, 16) for _ in range(12)).to(device="cuda", dtype=torch.bfloat16)
opt = torch.optim.AdamW(blocks.parameters())
for step in range(100):
    x = torch.rand(4, 2048, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for b in blocks:
        x = checkpoint(b, x, use_reentrant=False)
    x.float().mean().backward()
    opt.step()
    opt.zero_grad()
    print(torch.cuda.max_memory_allocated() / 2**30)
