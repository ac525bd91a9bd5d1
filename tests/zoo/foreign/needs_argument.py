# foreign: steps=400 says="--data-dir"
import argparse

import torch

p = argparse.ArgumentParser()
p.add_argument("--data-dir", required=True)
p.add_argument("--epochs", type=int, default=4)
args = p.parse_args()
model = torch.nn.Linear(10, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for e in range(args.epochs):
    for _ in range(100):
        loss = model(torch.randn(16, 10)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
