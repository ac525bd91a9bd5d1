# foreign: steps=6250 call="-m cnnlab.train --epochs 50"
import argparse

import torch

from .model import build


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    args = p.parse_args()
    net = build(32)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.rand(4000, 1, 28, 28), torch.randint(0, 10, (4000,))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True
    )
    for epoch in range(args.epochs):
        for xb, yb in loader:
            loss = torch.nn.functional.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
