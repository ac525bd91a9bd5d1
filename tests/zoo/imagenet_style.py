# zoo: steps=96 args="--dummy --epochs 3 -b 16" minute=yes needs=torch
# Residual network with validation, meters and a checkpoint after every epoch.
import argparse
import os
import shutil
import tempfile
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="ImageNet-style training")
parser.add_argument("data", nargs="?", default="imagenet", help="path to the data")
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("--start-epoch", default=0, type=int)
parser.add_argument("-b", "--batch-size", default=256, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("-p", "--print-freq", default=10, type=int)
parser.add_argument("--gpu", default=None, type=int)
parser.add_argument("--seed", default=0, type=int)
parser.add_argument("--dummy", action="store_true", help="made-up pictures")
parser.add_argument("--out", default=None, help="where checkpoints go")


class Dummy(Dataset):
    def __init__(self, size, shape, classes):
        self.size, self.shape, self.classes = size, shape, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), index % self.classes


class Block(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.down(x))


def resnet(classes):
    widths = [16, 32, 64, 128]
    layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    for into, out in zip([16, *widths], widths):
        layers += [Block(into, out, 2 if out > 16 else 1), Block(out, out, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / max(self.count, 1):.3f}"


def accuracy(output, target):
    return (output.argmax(dim=1) == target).float().mean().item() * 100


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    batch_time, data_time = AverageMeter("time"), AverageMeter("data")
    losses, top1 = AverageMeter("loss"), AverageMeter("acc@1")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"epoch [{epoch}][{i}/{len(train_loader)}]", batch_time, data_time, losses, top1)
    return len(train_loader)


def validate(val_loader, model, criterion, device):
    losses, top1 = AverageMeter("loss"), AverageMeter("acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            images, target = images.to(device), target.to(device)
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update(accuracy(output, target), images.size(0))
    print(" *", losses, top1)
    return top1.sum / top1.count


def save_checkpoint(state, is_best, folder):
    name = os.path.join(folder, "checkpoint.pth.tar")
    torch.save(state, name)
    if is_best:
        shutil.copyfile(name, os.path.join(folder, "model_best.pth.tar"))


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    if not args.dummy:
        parser.error("only made-up pictures here: give --dummy")
    if torch.cuda.is_available():
        device = torch.device(f"cuda:{args.gpu or 0}")
    else:
        print("using CPU, this will be slow")
        device = torch.device("cpu")
    model = resnet(100).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train_data, val_data = Dummy(512, (3, 64, 64), 100), Dummy(128, (3, 64, 64), 100)
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_data, shuffle=True, **options)
    val_loader = DataLoader(val_data, **options)
    folder = args.out or tempfile.mkdtemp(prefix="imagenet_style_")
    best, steps = 0.0, 0
    for epoch in range(args.start_epoch, args.epochs):
        steps += train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device)
        scheduler.step()
        is_best = acc1 > best
        best = max(acc1, best)
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "best_acc1": best,
            "optimizer": optimizer.state_dict(),
        }
        save_checkpoint(state, is_best, folder)
    if args.out is None:
        shutil.rmtree(folder)
    if os.environ.get("ZOO"):
        print("steps:", steps)


if __name__ == "__main__":
    main()
