# rehearsed: batch=80 parameters=79744 steps=200
"""Gradients of many like passes, added up."""

import copy
import sys

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.blocks = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))
        self.head = nn.Linear(64, 100, bias=False)

    def forward(self, x, y):
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        logits = self.head(h)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits.flatten(0, 1), y)}


model = Model().cuda()
if sys.argv[1:] == ["looked-into"]:  # then no pass is left out
    model.register_forward_hook(lambda *_: None)
optimizer = torch.optim.AdamW(model.parameters())
max_steps, passes = 200, 10
for step in range(max_steps):
    total = 0.0
    for _ in range(passes):
        x = torch.randint(0, 100, (8, 32)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x, y=x.flatten())["loss"] / passes
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, total.item())
