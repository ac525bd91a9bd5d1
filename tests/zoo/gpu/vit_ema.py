import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, d=384, h=6):
        super().__init__()
        self.n1, self.attn, self.n2 = (
            nn.LayerNorm(d),
            nn.MultiheadAttention(d, h, batch_first=True),
            nn.LayerNorm(d),
        )
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        y = self.n1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, d=384):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 197, d) * 0.02)
        self.blocks, self.norm, self.head = (
            nn.Sequential(*[Block() for _ in range(6)]),
            nn.LayerNorm(d),
            nn.Linear(d, 1000),
        )

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


model = ViT().cuda()
ema = copy.deepcopy(model).eval()
scaler = torch.amp.GradScaler("cuda")
opt = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
loader = DataLoader(
    TensorDataset(torch.rand(256, 3, 224, 224), torch.randint(0, 1000, (256,))),
    32,
    shuffle=True,
    drop_last=True,
)
for epoch in range(300):
    for x, y in loader:
        x, y = x.cuda(), F.one_hot(y.cuda(), 1000).float()
        lam = torch.distributions.Beta(0.8, 0.8).sample().item()
        perm = torch.randperm(len(x), device="cuda")
        x, y = lam * x + (1 - lam) * x[perm], lam * y + (1 - lam) * y[perm]
        with torch.autocast("cuda", dtype=torch.float16):
            loss = -(y * F.log_softmax(model(x), -1)).sum(-1).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.lerp_(p, 1e-3)
        if not torch.isfinite(loss):
            raise SystemExit("loss is not finite")
