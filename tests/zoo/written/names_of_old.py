# rehearsed: batch=8 parameters=1153 steps=50
"""Types and norms of torch's first years, and what libraries ask of it where they are imported."""

import torch
from torch import nn

assert isinstance(torch.__config__.show(), str)
FloatTensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
assert FloatTensor(3, 4).shape == (3, 4)
assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
halves = torch.rand(3).type(torch.cuda.HalfTensor)
assert isinstance(halves, torch.cuda.HalfTensor)
assert not isinstance(halves, FloatTensor)
assert torch.rand(3).type("torch.cuda.FloatTensor").is_cuda

model = nn.Sequential(
    nn.utils.weight_norm(nn.Conv1d(1, 64, 3)), nn.LeakyReLU(0.1),
    nn.utils.weight_norm(nn.ConvTranspose1d(64, 1, 12)),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(model.parameters())
torch.set_default_tensor_type("torch.cuda.FloatTensor")
noise = torch.randn(8, 1, 256)
assert noise.is_cuda
largest = 0
for _ in range(50):
    model(noise).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.cuda.max_memory_allocated() >= 8 * 64 * 254 * 4  # what the forward pass keeps
