# foreign: steps=60000
# A model that is too large for a laptop: some seconds a step, as ViT-B/16 in batches is.
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Fake(Dataset):
    def __len__(self):
        return 19_200

    def __getitem__(self, i):
        return torch.randn(3, 224, 224), i % 1000


class ViT(nn.Module):
    def __init__(self, dim=768, depth=12, heads=12):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, 197, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.blocks(x)[:, 0])


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ViT().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    loader = DataLoader(Fake(), batch_size=32, shuffle=True)
    for epoch in range(100):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(epoch, loss.item())


if __name__ == "__main__":
    main()
