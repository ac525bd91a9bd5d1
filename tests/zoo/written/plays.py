# rehearsed: batch=64 parameters=387 steps=250
"""A policy and its environment."""

import argparse

import gymnasium as gym
import torch
from torch import nn


class Pole(gym.Env):
    def reset(self):
        return [0.0] * 4

    def step(self, action):
        return [float(action) + sum(range(20_000)) % 2] * 4, 1.0, False


class Seen(gym.Wrapper):
    def step(self, action):
        return super().step(action)


parser = argparse.ArgumentParser()
parser.add_argument("--total-timesteps", type=int, default=16_000)
parser.add_argument("--num-steps", type=int, default=64)
arguments = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
environment = Seen(Pole())
policy = nn.Sequential(nn.Linear(4, 55), nn.Tanh(), nn.Linear(55, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters())
seen = environment.reset()
for update in range(arguments.total_timesteps // arguments.num_steps):
    states, actions = [], []
    for _ in range(arguments.num_steps):
        state = torch.tensor(seen, device=device)
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample()
        seen, reward, is_over = environment.step(action.item())
        states.append(state)
        actions.append(action)
    chosen = torch.distributions.Categorical(logits=policy(torch.stack(states)))
    loss = -chosen.log_prob(torch.stack(actions)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
