# foreign: steps=5000
# One file in the manner of minGPT: get_batch, estimate_loss, while True with a break.
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

batch_size, block_size, n_embd, n_head, n_layer = 16, 64, 192, 6, 4
max_iters, eval_interval, eval_iters = 5000, 500, 20
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)
data = torch.randint(0, 65, (200_000,))
train_data, val_data = data[:180_000], data[180_000:]


def get_batch(split):
    d = train_data if split == "train" else val_data
    ix = torch.randint(len(d) - block_size - 1, (batch_size,))
    x = torch.stack([d[i : i + block_size] for i in ix])
    y = torch.stack([d[i + 1 : i + block_size + 1] for i in ix])
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, n_head, C // n_head).transpose(1, 2)
            for t in self.qkv(self.ln1(x)).split(C, 2)
        )
        y = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(B, T, C)
        )
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(65, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, 65)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=device))
        logits = self.head(self.ln(self.blocks(x)))
        return logits, F.cross_entropy(logits.view(-1, 65), targets.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {
        s: sum(model(*get_batch(s))[1].item() for _ in range(eval_iters)) / eval_iters
        for s in ("train", "val")
    }
    model.train()
    return out


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
iter_num, t0 = 0, time.time()
while True:
    if iter_num % eval_interval == 0:
        print(iter_num, estimate_loss(), f"{time.time() - t0:.1f}s")
    if iter_num >= max_iters:
        break
    xb, yb = get_batch("train")
    _, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iter_num += 1
