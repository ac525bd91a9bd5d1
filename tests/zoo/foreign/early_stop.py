# foreign: steps=12500
# Validation first, patience, a fallback to the CPU, tqdm where it is there.
import torch
from torch import nn

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(it, **k):
        return it


dev = torch.device(
    "mps" if torch.backends.mps.is_available() else "cuda" if torch.cuda.is_available() else "cpu"
)
net = nn.GRU(32, 128, 2, batch_first=True).to(dev)
out = nn.Linear(128, 1).to(dev)
opt = torch.optim.AdamW(list(net.parameters()) + list(out.parameters()))
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=3)
X, Y = torch.randn(4000, 50, 32), torch.randn(4000, 1)
best, bad = float("inf"), 0


def evaluate():
    with torch.no_grad():
        return sum(
            nn.functional.mse_loss(
                out(net(X[k : k + 64].to(dev))[0][:, -1]), Y[k : k + 64].to(dev)
            ).item()
            for k in range(3200, 4000, 64)
        )


print("before", evaluate())
for epoch in range(125):
    for k in tqdm(range(0, 3200, 32)):
        loss = nn.functional.mse_loss(
            out(net(X[k : k + 32].to(dev))[0][:, -1]), Y[k : k + 32].to(dev)
        )
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    v = evaluate()
    sched.step(v)
    if v < best:
        best, bad = v, 0
        torch.save(net.state_dict(), "best.pt")
    else:
        bad += 1
        if bad > 50:
            break
