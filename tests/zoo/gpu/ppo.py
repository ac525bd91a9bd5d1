import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

device = torch.device("cuda")
envs, steps, obs_dim, acts = 8, 128, 4, 2


def layer(i, o, std=2**0.5):
    l = nn.Linear(i, o)
    nn.init.orthogonal_(l.weight, std)
    nn.init.constant_(l.bias, 0)
    return l


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer(obs_dim, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(obs_dim, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, acts, 0.01)
        )

    def act(self, x, action=None):
        p = Categorical(logits=self.actor(x))
        action = p.sample() if action is None else action
        return action, p.log_prob(action), p.entropy(), self.critic(x)


agent = Agent().to(device)
opt = torch.optim.Adam(agent.parameters(), 2.5e-4, eps=1e-5)
rng = np.random.default_rng(0)
obs, actions, logps, rewards, values = (
    torch.zeros((steps, envs) + s).to(device) for s in ((obs_dim,), (), (), (), ())
)
for update in range(1, 489):
    for t in range(steps):
        obs[t] = torch.Tensor(rng.normal(size=(envs, obs_dim))).to(device)
        with torch.no_grad():
            a, logp, _, v = agent.act(obs[t])
            values[t] = v.flatten()
        actions[t], logps[t] = a, logp
        assert set(a.cpu().numpy().tolist()) <= {0, 1}
        rewards[t] = torch.tensor(rng.normal(size=envs)).to(device).view(-1)
    adv = rewards - values
    ret = rewards
    b_obs, b_a, b_lp, b_adv, b_ret = (
        obs.reshape(-1, obs_dim),
        actions.reshape(-1),
        logps.reshape(-1),
        adv.reshape(-1),
        ret.reshape(-1),
    )
    inds = np.arange(envs * steps)
    for epoch in range(4):
        rng.shuffle(inds)
        for s in range(0, envs * steps, 256):
            mb = inds[s : s + 256]
            _, lp, ent, v = agent.act(b_obs[mb], b_a.long()[mb])
            ratio = (lp - b_lp[mb]).exp()
            A = b_adv[mb]
            A = (A - A.mean()) / (A.std() + 1e-8)
            loss = (
                torch.max(-A * ratio, -A * ratio.clamp(0.8, 1.2)).mean()
                - 0.01 * ent.mean()
                + 0.5 * ((v.view(-1) - b_ret[mb]) ** 2).mean()
            )
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    print(update, loss.item())
