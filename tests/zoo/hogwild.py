# zoo: steps=240 args="--epochs 6 --num-processes 2" minute=yes needs=torch,sklearn
# Two processes update one shared model, each on one thread; steps are those of one process.
import argparse
import os

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 48, 3, padding=1)
        self.fc = nn.Linear(48 * 16, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc(F.max_pool2d(x, 2).flatten(1))


def load():
    digits = load_digits()
    pictures = torch.tensor(digits.images[:1280], dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(pictures, torch.tensor(digits.target[:1280]))


def train(rank, args, model, steps):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + rank)
    loader = DataLoader(load(), batch_size=args.batch_size, shuffle=True)
    optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for epoch in range(args.epochs):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            if rank == 0:
                steps.value += 1
        print(f"process {os.getpid()} epoch {epoch} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    mp.set_start_method("spawn")
    torch.manual_seed(args.seed)
    model = Net()
    model.share_memory()
    steps = mp.Value("i", 0)
    processes = []
    for rank in range(args.num_processes):
        process = mp.Process(target=train, args=(rank, args, model, steps))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    if os.environ.get("ZOO"):
        print("steps:", steps.value)
