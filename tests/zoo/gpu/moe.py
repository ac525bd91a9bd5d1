import torch
import torch.nn as nn


class MoE(nn.Module):
    def __init__(self, d=512, n=8, k=2):
        super().__init__()
        self.k, self.gate = k, nn.Linear(d, n)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)
        )

    def forward(self, x):
        p, i = self.gate(x).softmax(-1).topk(self.k, -1)
        out = torch.zeros_like(x)
        for n, e in enumerate(self.experts):
            rows, slot = torch.where(i == n)
            if rows.numel():
                out.index_add_(0, rows, e(x[rows]) * p[rows, slot, None])
        return out


model = nn.Sequential(MoE(), MoE()).cuda()
opt = torch.optim.AdamW(model.parameters())
for step in range(1000):
    loss = model(torch.rand(4096, 512, device="cuda")).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
