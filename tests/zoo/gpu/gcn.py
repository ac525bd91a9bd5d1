import torch
import torch.nn as nn
import torch.nn.functional as F

n, e = 2708, 10556
edges = torch.randint(0, n, (2, e))
adj = torch.sparse_coo_tensor(edges, torch.ones(e), (n, n)).coalesce().cuda()
x, y = torch.rand(n, 1433).cuda(), torch.randint(0, 7, (n,)).cuda()
mask = (torch.rand(n) < 0.1).cuda()
w1, w2 = nn.Linear(1433, 16).cuda(), nn.Linear(16, 7).cuda()
opt = torch.optim.Adam([*w1.parameters(), *w2.parameters()], 1e-2)
for epoch in range(200):
    out = torch.sparse.mm(adj, w2(F.dropout(F.relu(torch.sparse.mm(adj, w1(x))))))
    loss = F.cross_entropy(out[mask], y[mask])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(epoch, loss.item(), int((out.argmax(1) == y).sum()) / n)
