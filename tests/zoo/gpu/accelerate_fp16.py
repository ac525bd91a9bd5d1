import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

acc = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
opt = torch.optim.AdamW(model.parameters())
loader = DataLoader(
    TensorDataset(torch.rand(3200, 64), torch.randint(0, 8, (3200,))), 32, shuffle=True
)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
for epoch in range(20):
    for x, y in loader:
        with acc.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
    acc.print(acc.gather(loss.detach()).mean().item())
