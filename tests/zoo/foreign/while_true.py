# foreign: steps=endless
# Trains until somebody presses Ctrl-C, and keeps the best model.
import torch
from torch import nn

model = nn.Sequential(
    nn.Conv1d(8, 64, 5),
    nn.ReLU(),
    nn.Conv1d(64, 64, 5),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(64, 4),
)
opt = torch.optim.Adam(model.parameters())
best, epoch = 1e9, 0
while True:
    total = 0
    for _ in range(100):
        x, y = torch.randn(32, 8, 128), torch.randint(0, 4, (32,))
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    epoch += 1
    if total < best:
        best = total
        torch.save(model.state_dict(), "best.pt")
    print(f"epoch {epoch} loss {total / 100:.4f}")
