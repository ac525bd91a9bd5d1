# zoo: steps=3 args="timm:resnet18 --steps 3 --batch 2 --image 64" needs=torch,torchvision,timm
"""Trains a published image network on random images, as benchmarks of GPUs do."""

import argparse
import os
import sys
import types

# torchvision's compiled operators need the very build of torch; its networks need none of them.
sys.modules.setdefault(
    "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
)

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("network", help="torchvision:resnet50 or timm:resnet50")
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--image", type=int, default=224)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--momentum", type=float, default=0.0)
args = parser.parse_args()

library, name = args.network.split(":")
if library == "torchvision":
    from torchvision import models

    network = getattr(models, name)(weights=None)
else:
    import timm

    network = timm.create_model(name)
device = "cuda" if torch.cuda.is_available() else "cpu"
network = network.to(device).train()
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=args.momentum)
images = torch.randn(args.batch, 3, args.image, args.image, device=device)
labels = torch.randint(0, 1000, (args.batch,), device=device)

for step in range(args.steps):
    optimizer.zero_grad()
    loss = loss_of(network(images), labels)
    loss.backward()
    optimizer.step()

if os.environ.get("ZOO"):
    print("steps:", args.steps)
