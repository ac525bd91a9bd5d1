# foreign: steps=20000
import torch

x = torch.linspace(-3, 3, 4096).reshape(-1, 1)
y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
model = torch.nn.Sequential(
    torch.nn.Linear(1, 512),
    torch.nn.Tanh(),
    torch.nn.Linear(512, 512),
    torch.nn.Tanh(),
    torch.nn.Linear(512, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for t in range(20000):
    loss = ((model(x) - y) ** 2).mean()
    if t % 100 == 99:
        print(t, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
