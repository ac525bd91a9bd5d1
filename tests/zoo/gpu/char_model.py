import torch
import torch.nn as nn

text = open(__file__).read() * 50
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], device="cuda")


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.emb, self.rnn, self.head = (
            nn.Embedding(n, 128),
            nn.LSTM(128, 256, 2, batch_first=True, dropout=0.1),
            nn.Linear(256, n),
        )

    def forward(self, x, state=None):
        out, state = self.rnn(self.emb(x), state)
        return self.head(out), state


model = Model(len(chars)).cuda()
opt = torch.optim.Adam(model.parameters(), 2e-3)
for step in range(5000):
    ix = torch.randint(0, len(data) - 65, (64,))
    x = torch.stack([data[i : i + 64] for i in ix.tolist()])
    y = torch.stack([data[i + 1 : i + 65] for i in ix.tolist()])
    logits, _ = model(x)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5)
    opt.step()
    if step % 100 == 0:
        print(step, float(loss))
