# zoo: steps=260 args="--episodes 260" minute=yes needs=torch
# The critic's optimizer is made first and steps last. A step is one episode: both step once.
import argparse
import os

import torch
from torch import nn, optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="Actor-critic that balances a pole")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--episodes", type=int, default=500)
parser.add_argument("--longest", type=int, default=60)
parser.add_argument("--seed", type=int, default=543)
args = parser.parse_args()
torch.manual_seed(args.seed)


class Pole:
    """A pole on a cart, integrated by Euler's rule."""

    def reset(self):
        self.x = torch.empty(4).uniform_(-0.05, 0.05)
        return self.x.clone()

    def step(self, action):
        x, v, angle, turn = self.x.tolist()
        force = 10.0 if action == 1 else -10.0
        acceleration = force + 0.05 * turn * turn * angle
        turned = (9.8 * angle - acceleration / 1.1) / 0.62
        self.x = torch.tensor(
            [x + 0.02 * v, v + 0.018 * acceleration, angle + 0.02 * turn, turn + 0.02 * turned]
        )
        done = abs(self.x[0].item()) > 2.4 or abs(self.x[2].item()) > 0.21
        return self.x.clone(), 1.0, done


actor = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2), nn.Softmax(dim=-1))
critic = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 1))
critic_optimizer = optim.Adam(critic.parameters(), lr=3e-3)
actor_optimizer = optim.Adam(actor.parameters(), lr=1e-3)


def finish_episode(log_probs, values, rewards):
    returns, future = [], 0.0
    for reward in reversed(rewards):
        future = reward + args.gamma * future
        returns.insert(0, future)
    returns = torch.tensor(returns)
    values = torch.cat(values)
    advantage = returns - values.detach()
    actor_optimizer.zero_grad()
    (-torch.stack(log_probs) * advantage).sum().backward()
    actor_optimizer.step()
    critic_optimizer.zero_grad()
    nn.functional.smooth_l1_loss(values, returns).backward()
    critic_optimizer.step()


def main():
    env = Pole()
    running, steps, episode = 10.0, 0, 0
    while episode < args.episodes:
        state = env.reset()
        log_probs, values, rewards = [], [], []
        for _ in range(args.longest):
            choice = Categorical(actor(state))
            action = choice.sample()
            values.append(critic(state))
            log_probs.append(choice.log_prob(action))
            state, reward, done = env.step(action.item())
            rewards.append(reward)
            if done:
                state = env.reset()
        finish_episode(log_probs, values, rewards)
        steps += 1
        episode += 1
        running = 0.05 * sum(rewards) + 0.95 * running
        if episode % 50 == 0:
            print(f"episode {episode} running reward {running:.1f}")
    if os.environ.get("ZOO"):
        print("steps:", steps)


if __name__ == "__main__":
    main()
