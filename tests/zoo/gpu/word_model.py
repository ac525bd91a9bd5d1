import math

import torch
import torch.nn as nn

ntoken, bptt, batch = 33278, 35, 20
data = torch.randint(0, ntoken, (200000,))
data = data.narrow(0, 0, (len(data) // batch) * batch).view(batch, -1).t().contiguous().to("cuda")


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.enc, self.rnn, self.dec = (
            nn.Dropout(0.2),
            nn.Embedding(ntoken, 200),
            nn.LSTM(200, 200, 2, dropout=0.2),
            nn.Linear(200, ntoken),
        )

    def forward(self, x, h):
        out, h = self.rnn(self.drop(self.enc(x)), h)
        return self.dec(self.drop(out)).view(-1, ntoken), h

    def init_hidden(self):
        w = next(self.parameters())
        return w.new_zeros(2, batch, 200), w.new_zeros(2, batch, 200)


model = RNN().to("cuda")
crit = nn.CrossEntropyLoss()
lr = 20.0
for epoch in range(1, 41):
    hidden = model.init_hidden()
    for i in range(0, data.size(0) - 1, bptt):
        n = min(bptt, len(data) - 1 - i)
        x, y = data[i : i + n], data[i + 1 : i + 1 + n].view(-1)
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        out, hidden = model(x, hidden)
        loss = crit(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        print("ppl", math.exp(min(loss.item(), 20)))
