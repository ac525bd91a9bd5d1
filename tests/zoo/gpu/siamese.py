import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self):
        self.x, self.y = torch.rand(2000, 1, 28, 28), torch.randint(0, 10, (2000,))
        self.by = {k: (self.y == k).nonzero().flatten().tolist() for k in range(10)}

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        j = random.choice(self.by[int(self.y[i])]) if i % 2 else random.randrange(2000)
        return self.x[i], self.x[j], float(self.y[i] == self.y[j])


net = nn.Sequential(
    nn.Conv2d(1, 32, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(1024, 128),
).to("cuda")
opt = torch.optim.Adadelta(net.parameters())
loader = DataLoader(Pairs(), 64, shuffle=True, num_workers=2)
for epoch in range(14):
    for a, b, same in loader:
        d = F.pairwise_distance(net(a.to("cuda")), net(b.to("cuda")))
        t = same.float().to("cuda")
        loss = (t * d**2 + (1 - t) * F.relu(1 - d) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
