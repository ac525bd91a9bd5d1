import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(5)
rows = torch.load(args.data)
loader = DataLoader(TensorDataset(rows["x"], rows["y"]), batch_size=64, shuffle=True)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(24, 96, num_layers=2, batch_first=True)
        self.out = nn.Linear(96, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


model = Tagger()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
steps = 0
for epoch in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"epoch {epoch} loss {loss.item():.4f}")
if os.environ.get("ZOO"):
    print("steps:", steps)
