import torch
import torch.nn as nn

n, e = 5000, 40000
src, dst = torch.randint(0, n, (2, e)).cuda()
x = torch.rand(n, 64).cuda()
deg = torch.bincount(dst, minlength=n).clamp(min=1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.r = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, h):
        agg = torch.zeros_like(h).index_add_(0, dst, self.l(h)[src])
        return torch.relu(agg / deg[:, None] + self.r(h))


model = nn.Sequential(Layer(), Layer(), nn.Linear(64, 10)).cuda()
opt = torch.optim.Adam(model.parameters())
y = torch.randint(0, 10, (n,), device="cuda")
for epoch in range(100):
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
