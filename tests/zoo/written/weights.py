# rehearsed: batch=16 parameters=8354 steps=120
"""Weights and data from files: read on a device, viewed, assigned, fetched, written and read again."""

import argparse
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 125), nn.ReLU(), nn.Linear(125, 1))
        self.scale = nn.Parameter(torch.empty(103))

    def init_weights(self):
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        return self.layers(x) * self.scale.mean()


parser = argparse.ArgumentParser()
parser.add_argument("--num-iterations", type=int, default=120)
arguments = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"

# Files that lie beside the script, made before: a state, class weights, a whole module.
for where in (device, torch.device(device, 0), {"cpu": "cuda:0"}, lambda one, _: one.cuda(), 0):
    held = torch.load("held.pt", map_location=where)
    assert held["classes"].is_cuda
    assert held["nested"][0].device == torch.device("cuda", 0)
assert not torch.load("held.pt", map_location="cpu")["classes"].is_cuda
assert held["classes"].tolist() == [0.0, 1.0, 2.0]  # small ones keep their values
assert held["shared"].data_ptr() == held["classes"].data_ptr()
whole = torch.load("whole.pt", map_location=device, weights_only=False)
assert whole.weight.is_cuda

# Real tensors stay real, whatever they are viewed as.
raw = torch.arange(8, dtype=torch.uint8)
assert raw.data.view(torch.int32).tolist() == [0x03020100, 0x07060504]
assert torch.zeros(4).data.view(torch.uint8).shape == (16,)

with torch.device("meta"):
    model = Net()
model.to_empty(device=device)
model.init_weights()
torch.save(model.state_dict(), "mine.pt")
model.load_state_dict(torch.load("mine.pt", map_location=device), strict=True, assign=True)
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
buffer.seek(0)
assert torch.load(buffer)["scale"].is_cuda
url = "https://example.org/weights/net-0123.pth"
model.load_state_dict(torch.hub.load_state_dict_from_url(url, progress=False))
model.cpu().state_dict()
model.cuda()

optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    is_last = step == arguments.num_iterations
    if is_last:
        break
    loss = (model(torch.rand(16, 64).to(device)) * held["classes"]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
