import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )

    def training_step(self, batch, i):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


data = TensorDataset(torch.rand(6400, 128), torch.randint(0, 10, (6400,)))
L.Trainer(
    accelerator="gpu",
    devices=1,
    strategy="fsdp",
    precision="bf16-mixed",
    max_epochs=10,
    enable_progress_bar=False,
    logger=False,
).fit(Lit(), DataLoader(data, 64, shuffle=True))
