# foreign: steps=100000
# Steps of less than a millisecond: the clock sees little but neighbours.
import torch

torch.set_num_threads(2)
w = torch.zeros(20, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.01)
X, y = torch.randn(5000, 20), torch.randn(5000)
for i in range(100000):
    j = torch.randint(0, 5000, (32,))
    loss = ((X[j] @ w - y[j]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
