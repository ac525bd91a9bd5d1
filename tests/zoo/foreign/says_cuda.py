# foreign: steps=3900
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(
    nn.Conv2d(3, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)
).cuda()
crit = nn.CrossEntropyLoss().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(
    TensorDataset(torch.rand(4992, 3, 32, 32), torch.randint(0, 100, (4992,))),
    batch_size=128,
    shuffle=True,
    pin_memory=True,
)
for epoch in range(100):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
