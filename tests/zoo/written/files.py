# rehearsed: batch=32 parameters=42 steps=30
"""Temporary folders, folders removed and made again, loaders with workers."""

import json
import os
import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, number):
        return torch.full((20,), float(number)), number % 2


def files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "settings.json")
        with open(path, "w") as file:
            json.dump({"rows": 320}, file)
        assert json.loads(pathlib.Path(path).read_text()) == {"rows": 320}
        assert os.listdir(folder) == ["settings.json"]
    assert not os.path.exists(folder)
    shutil.rmtree("out", ignore_errors=True)
    os.makedirs("out/samples", exist_ok=True)
    pathlib.Path("out/samples/first.txt").write_text("first")
    assert [one.name for one in pathlib.Path("out").rglob("*.txt")] == ["first.txt"]
    shutil.rmtree("out")
    assert not os.path.exists("out")
    os.makedirs("out")
    shutil.copy("kept.txt", "out/copy.txt")
    shutil.move("out/copy.txt", "out/moved.txt")
    assert os.listdir("out") == ["moved.txt"]
    os.remove("kept.txt")
    assert not os.path.exists("kept.txt")
    pathlib.Path("kept.txt").write_text("again")
    pathlib.Path("kept.txt").rename("renamed.txt")
    assert not os.path.exists("kept.txt")
    assert pathlib.Path("renamed.txt").read_text() == "again"


def main():
    files()
    model = nn.Linear(20, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Rows(), 32, shuffle=True, num_workers=2, pin_memory=True)
    for _ in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda(non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
