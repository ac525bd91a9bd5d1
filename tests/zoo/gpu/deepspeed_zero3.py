import deepspeed
import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)])
config = {
    "train_micro_batch_size_per_gpu": 16,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
engine, opt, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config
)
for step in range(100):
    loss = engine(torch.rand(16, 1024, device=engine.device, dtype=torch.bfloat16)).float().mean()
    engine.backward(loss)
    engine.step()
