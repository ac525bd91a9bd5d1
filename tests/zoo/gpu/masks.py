import torch
import torch.nn as nn

torch.manual_seed(0)
emb, lin = nn.Embedding(100, 32).cuda(), nn.Linear(32, 5).cuda()
opt = torch.optim.SGD([*emb.parameters(), *lin.parameters()], 0.1)
for step in range(60):
    ids = torch.randint(0, 100, (8, 32)).cuda()
    labels = torch.randint(-1, 5, (8, 32)).cuda()
    keep = labels != -1
    print(
        int(keep.sum()),
        labels.unique().tolist(),
        torch.bincount(labels[keep], minlength=5).tolist(),
    )
    logits = lin(emb(ids))[keep]
    assert logits.shape[0] == int(keep.sum())
    loss = nn.functional.cross_entropy(logits, labels[keep])
    opt.zero_grad()
    loss.backward()
    opt.step()
