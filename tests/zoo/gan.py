# zoo: steps=384 args="--niter 12" minute=yes needs=torch
# The discriminator's optimizer is made first, the generator's last; both step for every batch.
# A step is one batch: one update of the generator.
import argparse
import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def weights_init(module):
    if isinstance(module, nn.modules.conv._ConvNd):
        nn.init.normal_(module.weight, 0.0, 0.02)


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


class Generator(nn.Module):
    def __init__(self, nz, width):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, width * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(),
            nn.ConvTranspose2d(width * 2, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--niter", type=int, default=25, help="number of epochs")
    parser.add_argument("--batchSize", type=int, default=64)
    parser.add_argument("--nz", type=int, default=32)
    parser.add_argument("--ndf", type=int, default=24)
    parser.add_argument("--ngf", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.0002)
    opt = parser.parse_args()

    torch.manual_seed(999)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    real = torch.tanh(torch.randn(2048, 1, 16, 16))
    dataloader = DataLoader(TensorDataset(real), batch_size=opt.batchSize, shuffle=True)

    netD = Discriminator(opt.ndf).to(device)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    netG = Generator(opt.nz, opt.ngf).to(device)
    netG.apply(weights_init)
    optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))

    steps = 0
    for epoch in range(opt.niter):
        for i, data in enumerate(dataloader, 0):
            netD.zero_grad()
            batch = data[0].to(device)
            size = batch.size(0)
            label = torch.ones(size, device=device)
            errD_real = criterion(netD(batch), label)
            errD_real.backward()
            fake = netG(torch.randn(size, opt.nz, 1, 1, device=device))
            errD_fake = criterion(netD(fake.detach()), torch.zeros(size, device=device))
            errD_fake.backward()
            optimizerD.step()

            netG.zero_grad()
            errG = criterion(netD(fake), label)
            errG.backward()
            optimizerG.step()
            steps += 1
            if i % 16 == 0:
                lossD = (errD_real + errD_fake).item()
                print(f"[{epoch}/{opt.niter}][{i}/{len(dataloader)}] D {lossD:.3f} G {errG:.3f}")
    if os.environ.get("ZOO"):
        print("steps:", steps)


if __name__ == "__main__":
    main()
