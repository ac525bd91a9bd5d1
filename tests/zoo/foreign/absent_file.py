# foreign: steps=1000 says="/data/tinyshakespeare/input.txt"
import torch

text = open("/data/tinyshakespeare/input.txt").read()
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
model = torch.nn.Embedding(len(chars), len(chars))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1000):
    i = torch.randint(len(data) - 9, (32,))
    x = torch.stack([data[j : j + 8] for j in i])
    y = torch.stack([data[j + 1 : j + 9] for j in i])
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
