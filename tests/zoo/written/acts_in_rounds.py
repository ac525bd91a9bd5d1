# rehearsed: batch=32 parameters=387 steps=640
"""Rounds of acting and of learning: the frames are counted, batches come from a buffer."""

import gymnasium as gym
import torch
from torch import nn


class Pole(gym.Env):
    def reset(self):
        return [0.0] * 4

    def step(self, action):
        return [float(action)] * 4, 1.0, False


class Buffer:
    def __init__(self):
        self.states, self.actions = [], []

    def get(self, size):
        states, actions = torch.stack(self.states), torch.stack(self.actions)
        order = torch.randperm(len(states))
        for at in range(0, len(states), size):
            chosen = order[at : at + size].cuda()
            yield states[chosen], actions[chosen]


class Agent:
    def __init__(self):
        self.env = Pole()
        self.policy = nn.Sequential(nn.Linear(4, 55), nn.Tanh(), nn.Linear(55, 2)).cuda()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.num_timesteps = 0
        self.seen = self.env.reset()

    def collect(self):
        self.buffer, n_steps = Buffer(), 0
        while n_steps < 128:
            state = torch.tensor(self.seen, device="cuda")
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=self.policy(state)).sample()
            self.seen, _, _ = self.env.step(action.cpu().numpy())
            self.num_timesteps += 1
            n_steps += 1
            self.buffer.states.append(state)
            self.buffer.actions.append(action)

    def train(self):
        for _epoch in range(4):
            for states, actions in self.buffer.get(32):
                chosen = torch.distributions.Categorical(logits=self.policy(states))
                loss = -chosen.log_prob(actions).mean() - 0.01 * chosen.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()

    def learn(self, total_timesteps):
        while self.num_timesteps < total_timesteps:
            self.collect()
            self.train()


Agent().learn(total_timesteps=5_000)  # 40 rounds, the last of them whole
