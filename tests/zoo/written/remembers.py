# rehearsed: batch=10 parameters=15990 steps=180
"""A text in columns, states carried over, chunks of a batch, weights tied, two optimizers, ASGD."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(70, 40)
        self.rnn = nn.LSTM(40, 40)
        self.drop = nn.Dropout(0.4)
        self.decoder = nn.Linear(40, 70)
        self.decoder.weight = self.encoder.weight

    def forward(self, data, hidden):
        found, hidden = self.rnn(self.drop(self.encoder(data)), hidden)
        return self.decoder(self.drop(found)), hidden, found


def detached(hidden):
    return tuple(one.detach() for one in hidden)


def batch_of(source, i, length):
    return source[i : i + length], source[i + 1 : i + 1 + length].reshape(-1)


def train():
    model.train()
    hidden = tuple(model.encoder.weight.new_zeros(1, 10, 40) for _ in range(2))
    i, total = 0, 0.0
    while i < source.size(0) - 1 - 1:
        data, targets = batch_of(source, i, bptt)
        hidden = detached(hidden)
        optimizer.zero_grad()
        output, hidden, states = model(data, hidden)
        loss = criterion(output.view(-1, 70), targets)
        loss = loss + 2 * states.pow(2).mean() + (states[1:] - states[:-1]).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()
        total += loss.data
        i += bptt
    return total.item()


torch.manual_seed(1111)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(1111)
bptt = 20
source = torch.randint(0, 70, (3610,)).narrow(0, 0, 3610).view(10, -1).t().contiguous().cuda()
model, criterion = Model().cuda(), nn.CrossEntropyLoss().cuda()
parameters = list(model.parameters()) + list(criterion.parameters())
print(sum(one.nelement() for one in parameters), source.shape)
optimizer = torch.optim.SGD(parameters, lr=30, weight_decay=1.2e-6)
best = []
try:
    for epoch in range(1, 10 + 1):
        lost = train()
        with open("model.pt", "wb") as file:
            torch.save([model, criterion, optimizer], file)
        if "t0" not in optimizer.param_groups[0] and len(best) > 5 and lost > min(best[:-5]):
            optimizer = torch.optim.ASGD(model.parameters(), lr=30, t0=0, lambd=0.0)
        best.append(lost)
except KeyboardInterrupt:
    print("exiting early")
