# foreign: steps=12000
# No optimizer: parameters are updated by hand, as courses teach it.
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
x_train, y_train = torch.randn(30000, 256), torch.randint(0, 10, (30000,))
lr, bs = 0.5, 50
for epoch in range(20):
    for i in range(0, len(x_train), bs):
        loss = nn.functional.cross_entropy(model(x_train[i : i + bs]), y_train[i : i + bs])
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad * lr
            model.zero_grad()
    print(epoch, loss.item())
