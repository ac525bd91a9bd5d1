import argparse

import torch
import torch.nn as nn
from resnet import resnet50
from torch.utils.data import DataLoader, Dataset


class Fake(Dataset):
    def __len__(self):
        return 1_281_167

    def __getitem__(self, i):
        return torch.randn(3, 224, 224), i % 1000


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("-b", "--batch-size", type=int, default=256)
args = parser.parse_args()
torch.backends.cudnn.benchmark = True
model = torch.nn.DataParallel(resnet50()).cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
loader = DataLoader(Fake(), args.batch_size, shuffle=True, num_workers=2, pin_memory=True)


def accuracy(output, target, topk=(1, 5)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand(max(topk), -1))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0))
            for k in topk
        ]


for epoch in range(args.epochs):
    for i, (images, target) in enumerate(loader):
        images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        top1, top5 = accuracy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"{epoch} {i} loss {loss.item():.3f} top1 {top1[0]:.2f} {top5.item():.1f}")
    scheduler.step()
    torch.save(
        {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()},
        "checkpoint.pth.tar",
    )
