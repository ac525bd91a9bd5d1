import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

data = TensorDataset(torch.rand(2000, 20), torch.randint(0, 2, (2000,)))
train, val = random_split(data, [1600, 400])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).cuda()
opt = torch.optim.AdamW(model.parameters())
best, bad = float("inf"), 0
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2)
for epoch in range(200):
    for x, y in DataLoader(train, 32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        v = (
            sum(
                nn.functional.cross_entropy(model(x.cuda()), y.cuda()).item()
                for x, y in DataLoader(val, 100)
            )
            / 4
        )
    sched.step(v)
    if v < best - 1e-3:
        best, bad = v, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        bad += 1
    if bad >= 5:
        break
