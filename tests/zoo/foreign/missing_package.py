# foreign: steps=1000 says="pip install einops_of_nobody"
import torch
from torch import nn

from einops_of_nobody import rearrange

model = nn.Linear(64, 64)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    loss = model(rearrange(torch.randn(8, 8, 64), "b t c -> (b t) c")).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
