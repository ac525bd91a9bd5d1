import collections
import random

import numpy as np
import torch
import torch.nn as nn

device = "cuda"
rng = np.random.default_rng(0)


def net():
    return nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    ).to(device)


q, target = net(), net()
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), 2.5e-4)
buffer = collections.deque(maxlen=10000)
state = np.zeros(4, np.float32)
for step in range(500000):
    if random.random() < max(0.05, 1 - step / 250000):
        action = random.randrange(2)
    else:
        action = torch.argmax(q(torch.Tensor(state).to(device)[None]), 1).cpu().numpy()[0]
    nxt = rng.normal(size=4).astype(np.float32)
    buffer.append((state, action, 1.0, nxt, False))
    state = nxt
    if step > 1000 and step % 10 == 0:
        s, a, r, n, d = map(np.array, zip(*random.sample(buffer, 128)))
        with torch.no_grad():
            t = torch.tensor(r, device=device).float() + 0.99 * target(
                torch.tensor(n, device=device)
            ).max(1)[0] * (1 - torch.tensor(d, device=device).float())
        loss = nn.functional.mse_loss(
            t,
            q(torch.tensor(s, device=device))
            .gather(1, torch.tensor(a, device=device).long()[:, None])
            .squeeze(),
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 500 == 0:
            target.load_state_dict(q.state_dict())
