import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.d1, self.d2, self.fc1, self.fc2 = (
            nn.Dropout(0.25),
            nn.Dropout(0.5),
            nn.Linear(9216, 128),
            nn.Linear(128, 10),
        )

    def forward(self, x):
        x = self.d1(F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)).flatten(1)
        return F.log_softmax(self.fc2(self.d2(F.relu(self.fc1(x)))), 1)


def train(model, device, loader, optimizer, epoch):
    model.train()
    for i, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"Train {epoch} [{i * len(data)}/{len(loader.dataset)}] loss {loss.item():.6f}")


def test(model, device, loader):
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (
                output.argmax(1, keepdim=True)
                .eq(target.view_as(output.argmax(1, keepdim=True)))
                .sum()
                .item()
            )
    print("accuracy", correct / len(loader.dataset))


device = torch.device("cuda")
data = TensorDataset(torch.rand(60000, 1, 28, 28), torch.randint(0, 10, (60000,)))
loader = DataLoader(data, 64, shuffle=True, num_workers=1, pin_memory=True)
test_loader = DataLoader(torch.utils.data.Subset(data, range(1000)), 1000)
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
for epoch in range(1, 15):
    train(model, device, loader, optimizer, epoch)
    test(model, device, test_loader)
    scheduler.step()
torch.save(model.state_dict(), "mnist_cnn.pt")
