# rehearsed: batch=8 parameters=4585 steps=2000
"""Two networks against each other, penalties now and then, a mean of the weights, phases."""

import argparse
import copy

import numpy as np
import torch
from torch import autograd, nn
from torch.nn import functional
from torch.utils import data


def batches(loader):
    while True:
        yield from loader


def learns(model, flag):
    for parameter in model.parameters():
        parameter.requires_grad = flag


parser = argparse.ArgumentParser()
parser.add_argument("--iter", type=int, default=2000)
parser.add_argument("--d_reg_every", type=int, default=4)
args = parser.parse_args()
device = torch.device("cuda", 0)
generator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 36))
generator = generator.to(device)
discriminator = nn.Sequential(
    nn.Unflatten(1, (1, 6, 6)), nn.utils.spectral_norm(nn.Conv2d(1, 8, 3)), nn.SiLU(),
    nn.Flatten(), nn.Linear(128, 8), nn.SiLU(), nn.Linear(8, 1),
).to(device)  # fmt: skip
averaged = copy.deepcopy(generator).eval().requires_grad_(False)
g_optim = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
d_optim = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.0, 0.99))
images = data.TensorDataset(torch.rand(256, 36))
loader = batches(data.DataLoader(images, 8, sampler=data.RandomSampler(images), drop_last=True))
began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
generated = np.random.default_rng(0)
mean_length = torch.zeros([], device=device)
for i in range(args.iter):
    began.record(torch.cuda.current_stream(device))
    real = next(loader)[0].to(device)
    learns(generator, False)
    learns(discriminator, True)
    noise = torch.from_numpy(generated.normal(0, 1, (8, 16)).astype(np.float32)).pin_memory()
    made = generator(noise.to(device))
    loss = functional.softplus(discriminator(made)).mean()
    loss = loss + functional.softplus(-discriminator(real)).mean()
    discriminator.zero_grad()
    loss.backward()
    d_optim.step()
    if i % args.d_reg_every == 0:
        real.requires_grad = True
        told = discriminator(real)
        (slope,) = autograd.grad(outputs=told.sum(), inputs=real, create_graph=True)
        penalty = slope.reshape(slope.shape[0], -1).norm(2, dim=1).pow(2).mean()
        discriminator.zero_grad()
        (5 * penalty + 0 * told[0].sum()).backward()
        d_optim.step()
    learns(generator, True)
    learns(discriminator, False)
    latents = torch.randn(8, 16, device=device, requires_grad=True)
    made = generator(latents)
    g_loss = functional.softplus(-discriminator(made)).mean()
    spread = autograd.grad((made * torch.randn_like(made)).sum(), latents, create_graph=True)[0]
    lengths = spread.pow(2).sum(1).sqrt()
    mean_length = mean_length.lerp(lengths.mean().detach(), 0.01)
    generator.zero_grad(set_to_none=True)
    (g_loss + (lengths - mean_length).pow(2).mean()).backward()
    for parameter in generator.parameters():
        torch.nan_to_num(parameter.grad, nan=0, posinf=1e5, neginf=-1e5, out=parameter.grad)
    g_optim.step()
    with torch.no_grad():
        for kept, own in zip(averaged.parameters(), generator.parameters(), strict=True):
            kept.copy_(own.lerp(kept, 0.999))
    ended.record()
    ended.synchronize()
    if i % 100 == 0:
        print(loss.item(), g_loss.item(), began.elapsed_time(ended), averaged(noise.cuda()).shape)
