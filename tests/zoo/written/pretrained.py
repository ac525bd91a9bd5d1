# rehearsed: batch=4 parameters=146240 steps=60
"""A model of Transformers by its configuration, its weights on disk, or not."""

import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
assert model.lm_head.weight is model.model.embed_tokens.weight
on_device = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map="cuda")
assert {one.device.type for one in on_device.parameters()} == {"cuda"}
model.to("cuda").train()
optimizer = torch.optim.AdamW(model.parameters())
max_train_steps = 60
for _ in range(max_train_steps):
    tokens = torch.randint(0, 1000, (4, 64), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
