import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gru, self.out = (
            nn.Conv1d(80, 256, 5, 2, 2),
            nn.GRU(256, 256, 3, batch_first=True, bidirectional=True),
            nn.Linear(512, 32),
        )

    def forward(self, x, n):
        x = torch.relu(self.conv(x)).mT
        p = nn.utils.rnn.pack_padded_sequence(
            x, (n // 2).cpu(), batch_first=True, enforce_sorted=False
        )
        h, _ = self.gru(p)
        h, m = nn.utils.rnn.pad_packed_sequence(h, batch_first=True)
        return self.out(h).log_softmax(-1), m


model = Net().cuda()
ctc = nn.CTCLoss()
opt = torch.optim.AdamW(model.parameters(), 3e-4)
for step in range(1000):
    n = torch.randint(200, 400, (16,))
    x = torch.rand(16, 80, int(n.max())).cuda()
    y = torch.randint(1, 32, (16, 30)).cuda()
    p, m = model(x, n)
    loss = ctc(p.transpose(0, 1), y, m, torch.full((16,), 30))
    opt.zero_grad()
    loss.backward()
    opt.step()
