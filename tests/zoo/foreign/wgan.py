# foreign: steps=2000
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
nz, n_critic, epochs = 64, 5, 40
G = nn.Sequential(
    nn.ConvTranspose2d(nz, 128, 4),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.ConvTranspose2d(64, 3, 4, 2, 1),
    nn.Tanh(),
).to(device)
D = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(128, 1, 4),
    nn.Flatten(),
).to(device)
optG = torch.optim.RMSprop(G.parameters(), lr=5e-5)
optD = torch.optim.RMSprop(D.parameters(), lr=5e-5)
loader = DataLoader(TensorDataset(torch.rand(16000, 3, 16, 16) * 2 - 1), 64, shuffle=True)
for epoch in range(epochs):
    for i, (real,) in enumerate(loader):
        real = real.to(device)
        optD.zero_grad()
        fake = G(torch.randn(len(real), nz, 1, 1, device=device)).detach()
        lossD = D(fake).mean() - D(real).mean()
        lossD.backward()
        optD.step()
        for p in D.parameters():
            p.data.clamp_(-0.01, 0.01)
        if i % n_critic == 0:
            optG.zero_grad()
            lossG = -D(G(torch.randn(len(real), nz, 1, 1, device=device))).mean()
            lossG.backward()
            optG.step()
    print(epoch, lossD.item(), lossG.item())
