import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda:0")
nz = ngf = ndf = 64
G = nn.Sequential(
    nn.ConvTranspose2d(nz, 8 * ngf, 4, 1, 0, bias=False),
    nn.BatchNorm2d(8 * ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(8 * ngf, 4 * ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(4 * ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(4 * ngf, 2 * ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(2 * ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(2 * ngf, ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
D = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(ndf, 2 * ndf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(2 * ndf),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(2 * ndf, 4 * ndf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(4 * ndf),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(4 * ndf, 8 * ndf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(8 * ndf),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(8 * ndf, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
).to(device)


def init(m):
    if "Conv" in type(m).__name__:
        nn.init.normal_(m.weight, 0.0, 0.02)


G.apply(init)
D.apply(init)
crit = nn.BCELoss()
fixed = torch.randn(64, nz, 1, 1, device=device)
oD, oG = (torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)) for m in (D, G))
loader = DataLoader(TensorDataset(torch.rand(2000, 3, 64, 64)), 64, shuffle=True)
for epoch in range(25):
    for i, (real,) in enumerate(loader):
        D.zero_grad()
        real = real.to(device)
        n = real.size(0)
        label = torch.full((n,), 1, dtype=real.dtype, device=device)
        errD = crit(D(real), label)
        errD.backward()
        fake = G(torch.randn(n, nz, 1, 1, device=device))
        label.fill_(0)
        errF = crit(D(fake.detach()), label)
        errF.backward()
        oD.step()
        G.zero_grad()
        label.fill_(1)
        errG = crit(D(fake), label)
        errG.backward()
        oG.step()
        print("%.4f %.4f" % ((errD + errF).item(), errG.item()))
