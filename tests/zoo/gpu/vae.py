import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.logvar, self.fc3, self.fc4 = (
            nn.Linear(784, 400),
            nn.Linear(400, 20),
            nn.Linear(400, 20),
            nn.Linear(20, 400),
            nn.Linear(400, 784),
        )

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


model = VAE().cuda()
opt = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(torch.rand(60000, 1, 28, 28)), 128, shuffle=True)
for epoch in range(10):
    total = 0
    for i, (x,) in enumerate(loader):
        x = x.cuda()
        recon, mu, logvar = model(x)
        loss = F.binary_cross_entropy(recon, x.view(-1, 784), reduction="sum") - 0.5 * torch.sum(
            1 + logvar - mu.pow(2) - logvar.exp()
        )
        opt.zero_grad()
        loss.backward()
        total += loss.item()
        opt.step()
    with torch.no_grad():
        sample = torch.randn(64, 20).cuda()
        print(total / len(loader.dataset), model.fc3(sample).shape)
