# zoo: steps=16 args="--steps 16" minute=yes needs=torch
# LBFGS calls its closure up to twenty times a step.
import argparse
import os

import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 32)
        self.lstm2 = nn.LSTMCell(32, 32)
        self.linear = nn.Linear(32, 1)

    def forward(self, series):
        outputs = []
        h1 = torch.zeros(series.size(0), 32, dtype=torch.double)
        c1, h2, c2 = h1.clone(), h1.clone(), h1.clone()
        for value in series.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15, help="steps to run")
    opt = parser.parse_args()
    torch.manual_seed(0)
    phase = torch.randint(-80, 80, (32, 1))
    waves = torch.sin((torch.arange(41) + phase).double() / 20)
    data, target = waves[:, :-1], waves[:, 1:]
    seq = Sequence().double()
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.2, tolerance_change=0, tolerance_grad=0)

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(data), target)
        loss.backward()
        return loss

    steps = 0
    for i in range(opt.steps):
        loss = optimizer.step(closure)
        steps += 1
        if i % 5 == 0:
            print(f"step {i} loss {loss.item():.5f}")
    if os.environ.get("ZOO"):
        print("steps:", steps)
