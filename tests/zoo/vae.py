# zoo: steps=960 args="--epochs 30" minute=yes needs=torch
"""Variational autoencoder on small pictures of boxes."""

import argparse
import os

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--accel", action="store_true", help="use the accelerator")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda") if args.accel and torch.cuda.is_available() else torch.device("cpu")


class Boxes(Dataset):
    def __init__(self, count, side=28):
        self.corners = torch.randint(2, side // 2, (count, 2))
        self.side = side

    def __len__(self):
        return len(self.corners)

    def __getitem__(self, index):
        top, left = self.corners[index].tolist()
        picture = torch.zeros(self.side, self.side)
        picture[top : top + 10, left : left + 10] = 1.0
        return picture.view(-1)


train_loader = DataLoader(Boxes(4096), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(Boxes(512), batch_size=args.batch_size)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.mean = nn.Linear(400, 20)
        self.logvar = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def forward(self, x):
        hidden = F.relu(self.fc1(x))
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        return self.fc4(F.relu(self.fc3(code))), mean, logvar


def loss_function(logits, x, mean, logvar):
    likelihood = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
    return likelihood + divergence


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
steps = 0


def train(epoch):
    global steps
    model.train()
    total = 0.0
    for data in train_loader:
        data = data.to(device)
        optimizer.zero_grad()
        logits, mean, logvar = model(data)
        loss = loss_function(logits, data, mean, logvar)
        loss.backward()
        total += loss.item()
        optimizer.step()
        steps += 1
    print(f"epoch {epoch}: train loss {total / len(train_loader.dataset):.3f}")


def test(epoch):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for data in test_loader:
            data = data.to(device)
            logits, mean, logvar = model(data)
            total += loss_function(logits, data, mean, logvar).item()
    print(f"epoch {epoch}: test loss {total / len(test_loader.dataset):.3f}")


if __name__ == "__main__":
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test(epoch)
    if os.environ.get("ZOO"):
        print("steps:", steps)
