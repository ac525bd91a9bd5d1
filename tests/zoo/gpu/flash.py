import torch
import torch.nn as nn
from flash_attn import flash_attn_func


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(1024, 3072), nn.Linear(1024, 1024)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 16, 64).unbind(2)
        return x + self.o(flash_attn_func(q, k, v, causal=True).reshape(b, t, c))


model = nn.Sequential(*[Attn() for _ in range(6)]).to("cuda", torch.bfloat16)
opt = torch.optim.AdamW(model.parameters())
for step in range(500):
    loss = (
        model(torch.rand(8, 2048, 1024, device="cuda", dtype=torch.bfloat16)).float().pow(2).mean()
    )
    loss.backward()
    opt.step()
    opt.zero_grad()
