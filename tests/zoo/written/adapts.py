# rehearsed: batch=4 parameters=29056 steps=90
"""Adapters beside frozen weights in their own width, as peft's; an update where enough has passed."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader


class LoraLayer(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(64, 64, bias=False) for _ in range(4)
        )
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (
            one(y).unflatten(-1, (4, 16)).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o_proj(found.transpose(1, 2).flatten(2))


parser = argparse.ArgumentParser()
parser.add_argument("--max_train_steps", type=int, default=90)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
args = parser.parse_args()
model = nn.Sequential(nn.Embedding(100, 64), Block(), nn.Linear(64, 80, bias=False))
model.requires_grad_(False)
for name in ("q_proj", "v_proj"):
    setattr(model[1], name, LoraLayer(getattr(model[1], name), 4))
model = model.cuda()
optimizer = torch.optim.AdamW(one for one in model.parameters() if one.requires_grad)
loader = DataLoader(torch.randint(0, 80, (120, 32)), 2, shuffle=True)
per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
epochs = math.ceil(args.max_train_steps / per_epoch)
completed_steps = 0
for _epoch in range(epochs):
    for step, tokens in enumerate(loader):
        tokens = tokens.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        (loss / args.gradient_accumulation_steps).backward()
        is_last = step == len(loader) - 1
        if (step + 1) % args.gradient_accumulation_steps == 0 or is_last:
            optimizer.step()
            optimizer.zero_grad()
            completed_steps += 1
        if completed_steps >= args.max_train_steps:
            break
