# foreign: steps=1000
import math
import random

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Pole:
    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.s

    def step(self, a):
        x, v, th, w = self.s
        f = 10.0 if a == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        t = (f + 0.05 * w * w * s) / 1.1
        tha = (9.8 * s - c * t) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        xa = t - 0.05 * tha * c / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * xa, th + 0.02 * w, w + 0.02 * tha]
        return self.s, 1.0, abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21


policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
env = Pole()
running = 10
for i_episode in range(1000):
    state, logps, rewards, done = env.reset(), [], [], False
    while not done and len(rewards) < 500:
        d = Categorical(logits=policy(torch.tensor(state)))
        a = d.sample()
        logps.append(d.log_prob(a))
        state, r, done = env.step(a.item())
        rewards.append(r)
    R, returns = 0, []
    for r in reversed(rewards):
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = torch.stack([-lp * R for lp, R in zip(logps, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = 0.05 * len(rewards) + 0.95 * running
    if i_episode % 10 == 0:
        print(i_episode, running)
