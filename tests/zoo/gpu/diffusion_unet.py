import torch
import torch.nn as nn
import torch.nn.functional as F


class Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.c1, self.t, self.n2, self.c2, self.skip = (
            nn.GroupNorm(8, i),
            nn.Conv2d(i, o, 3, 1, 1),
            nn.Linear(256, o),
            nn.GroupNorm(8, o),
            nn.Conv2d(o, o, 3, 1, 1),
            nn.Conv2d(i, o, 1),
        )

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[..., None, None]
        return self.c2(F.silu(self.n2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.inp, self.d1, self.d2, self.mid, self.u2, self.u1, self.out = (
            nn.Conv2d(3, c, 3, 1, 1),
            Res(c, c),
            Res(c, 2 * c),
            Res(2 * c, 2 * c),
            Res(4 * c, c),
            Res(2 * c, c),
            nn.Conv2d(c, 3, 3, 1, 1),
        )
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.attn = nn.MultiheadAttention(2 * c, 4, batch_first=True)

    def forward(self, x, t):
        f = torch.exp(-torch.arange(32, device=t.device) / 32 * 9.2)
        e = t[:, None].float() * f
        t = self.time(torch.cat([e.sin(), e.cos()], 1))
        a = self.d1(self.inp(x), t)
        b = self.d2(F.avg_pool2d(a, 2), t)
        m = self.mid(F.avg_pool2d(b, 2), t)
        n, c, h, w = m.shape
        s = m.flatten(2).mT
        m = m + self.attn(s, s, s)[0].mT.view(n, c, h, w)
        m = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1), t)
        return self.out(self.u1(torch.cat([F.interpolate(m, scale_factor=2), a], 1), t))


device = "cuda"
model = UNet().to(device, memory_format=torch.channels_last)
opt = torch.optim.AdamW(model.parameters(), 1e-4)
betas = torch.linspace(1e-4, 0.02, 1000, device=device)
ab = (1 - betas).cumprod(0)
for step in range(100000):
    x = torch.rand(16, 3, 64, 64, device=device).contiguous(memory_format=torch.channels_last)
    t = torch.randint(0, 1000, (16,), device=device)
    noise = torch.randn_like(x)
    xt = ab[t].sqrt()[:, None, None, None] * x + (1 - ab[t]).sqrt()[:, None, None, None] * noise
    with torch.autocast(device, torch.bfloat16):
        loss = F.mse_loss(model(xt, t), noise)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
