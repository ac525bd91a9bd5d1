import sys

import torch
import torch.nn as nn

if not torch.cuda.is_available():
    sys.exit("This script needs a GPU")
device = torch.device("cuda")
print(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory)
torch.cuda.manual_seed_all(0)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, batch_first=True), 4).to(device)
opt = torch.optim.Adam(model.parameters())
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(300):
    start.record()
    x = torch.rand(16, 128, 256, device=device)
    loss = model(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    end.record()
    torch.cuda.synchronize()
    print(start.elapsed_time(end), loss.item())
