import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, up=2):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 5, 1, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(32, up**2, 3, 1, 1),
        )
        self.shuffle = nn.PixelShuffle(up)
        for m in self.body:
            if isinstance(m, nn.Conv2d):
                nn.init.orthogonal_(m.weight)

    def forward(self, x):
        return self.shuffle(self.body(x))


loader = DataLoader(
    TensorDataset(torch.rand(400, 1, 64, 64), torch.rand(400, 1, 128, 128)), 4, shuffle=True
)
model = Net().cuda()
crit = nn.MSELoss().cuda()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in range(1, 31):
    total = 0
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x.cuda()), y.cuda())
        total += loss.item()
        loss.backward()
        opt.step()
    print("PSNR", 10 * __import__("math").log10(1 / max(total / len(loader), 1e-9)))
