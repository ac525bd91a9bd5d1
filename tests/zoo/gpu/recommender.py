import torch
import torch.nn as nn


class DLRM(nn.Module):
    def __init__(self, rows=(100000,) * 8, d=64):
        super().__init__()
        self.emb = nn.ModuleList(nn.EmbeddingBag(r, d, mode="sum", sparse=True) for r in rows)
        self.bot, self.top = (
            nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, d), nn.ReLU()),
            nn.Sequential(nn.Linear(d + 36, 512), nn.ReLU(), nn.Linear(512, 1)),
        )

    def forward(self, dense, idx, off):
        x = self.bot(dense)
        v = torch.stack([x] + [e(i, o) for e, i, o in zip(self.emb, idx, off)], 1)
        z = torch.bmm(v, v.mT)
        li, lj = torch.tril_indices(9, 9, -1)
        return self.top(torch.cat([x, z[:, li, lj]], 1))


model = DLRM().cuda()
sparse = torch.optim.SparseAdam(list(model.emb.parameters()), 1e-3)
dense = torch.optim.Adam([*model.bot.parameters(), *model.top.parameters()], 1e-3)
n = 2048
for step in range(20000):
    idx = [torch.randint(0, 100000, (n * 4,)).cuda() for _ in range(8)]
    off = [torch.arange(0, n * 4, 4).cuda() for _ in range(8)]
    loss = nn.functional.binary_cross_entropy_with_logits(
        model(torch.rand(n, 13).cuda(), idx, off).squeeze(1),
        torch.randint(0, 2, (n,)).float().cuda(),
    )
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
