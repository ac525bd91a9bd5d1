# foreign: steps=15000
import os

import torch
import torch.nn.functional as F
import yaml

with open(os.path.join(os.path.dirname(__file__), "config.yaml")) as f:
    cfg = yaml.safe_load(f)


class UNet(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.d1 = torch.nn.Conv2d(1, c, 3, padding=1)
        self.d2 = torch.nn.Conv2d(c, 2 * c, 3, padding=1)
        self.u1 = torch.nn.Conv2d(3 * c, c, 3, padding=1)
        self.out = torch.nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = F.relu(self.d1(x))
        b = F.relu(self.d2(F.max_pool2d(a, 2)))
        b = F.interpolate(b, scale_factor=2)
        return self.out(F.relu(self.u1(torch.cat([a, b], 1))))


model = UNet(cfg["model"]["channels"])
optimizer = getattr(torch.optim, cfg["optim"]["name"])(model.parameters(), lr=cfg["optim"]["lr"])
images = torch.rand(cfg["data"]["size"], 1, 48, 48)
iters_per_epoch = len(images) // cfg["data"]["batch"]
for epoch in range(cfg["train"]["epochs"]):
    for i in range(iters_per_epoch):
        x = images[i * cfg["data"]["batch"] : (i + 1) * cfg["data"]["batch"]]
        loss = F.binary_cross_entropy_with_logits(model(x), (x > 0.5).float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(epoch, float(loss))
