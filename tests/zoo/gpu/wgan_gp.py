import torch
import torch.nn as nn

G = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh()).cuda()
D = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).cuda()
oG, oD = torch.optim.RMSprop(G.parameters(), 5e-5), torch.optim.RMSprop(D.parameters(), 5e-5)
for step in range(10000):
    for _ in range(5):
        real, fake = torch.rand(64, 784).cuda(), G(torch.randn(64, 64, device="cuda")).detach()
        eps = torch.rand(64, 1, device="cuda")
        mix = (eps * real + (1 - eps) * fake).requires_grad_()
        (grad,) = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
        loss = D(fake).mean() - D(real).mean() + 10 * ((grad.norm(2, 1) - 1) ** 2).mean()
        oD.zero_grad()
        loss.backward()
        oD.step()
    loss = -D(G(torch.randn(64, 64, device="cuda"))).mean()
    oG.zero_grad()
    loss.backward()
    oG.step()
