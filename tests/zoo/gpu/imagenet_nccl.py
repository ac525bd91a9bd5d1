import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from resnet import resnet50
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Fake(Dataset):
    def __len__(self):
        return 1_281_167

    def __getitem__(self, i):
        return torch.randn(3, 224, 224), i % 1000


def worker(gpu, ngpus):
    dist.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:23456", world_size=ngpus, rank=gpu
    )
    torch.cuda.set_device(gpu)
    model = DistributedDataParallel(resnet50().cuda(gpu), device_ids=[gpu])
    criterion = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = Fake()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 256 // ngpus, sampler=sampler, num_workers=1, pin_memory=True)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for images, target in loader:
            loss = criterion(model(images.cuda(gpu)), target.cuda(gpu))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()


if __name__ == "__main__":
    ngpus = torch.cuda.device_count()
    assert ngpus > 0, "no GPU"
    mp.spawn(worker, nprocs=ngpus, args=(ngpus,))
