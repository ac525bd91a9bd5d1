# zoo: steps=120 args="--epochs 3 --accumulate 4" minute=yes needs=torch
# 160 batches an epoch, four to a step; bf16 autocast, with a scaler that does nothing on a CPU.
import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, vocabulary=500, width=96, heads=4, layers=3, classes=5, length=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.position).mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--fp32", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    tokens = torch.randint(0, 500, (1280, 48))
    labels = tokens[:, 0] % 5
    loader = DataLoader(
        TensorDataset(tokens, labels), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    scaler = GradScaler(device, enabled=device == "cuda")

    steps = 0
    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            with autocast(device, dtype=torch.bfloat16, enabled=not args.fp32):
                loss = F.cross_entropy(model(x), y) / args.accumulate
            scaler.scale(loss).backward()
            if (i + 1) % args.accumulate == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                steps += 1
        print(f"epoch {epoch} loss {loss.item() * args.accumulate:.3f}")
    if os.environ.get("ZOO"):
        print("steps:", steps)


if __name__ == "__main__":
    main()
