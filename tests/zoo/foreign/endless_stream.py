# foreign: steps=endless
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randint(0, 1000, (65,))


model = nn.Sequential(nn.Embedding(1000, 128), nn.LSTM(128, 256, batch_first=True))
head = nn.Linear(256, 1000)
opt = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-4)
it = 0
for batch in DataLoader(Stream(), batch_size=16):
    out, _ = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(head(out).flatten(0, 1), batch[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    it += 1
    if it % 50 == 0:
        print(it, loss.item())
