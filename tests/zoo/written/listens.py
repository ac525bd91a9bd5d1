# rehearsed: batch=6 parameters=13452 steps=80
"""Sequences of many lengths: buckets, packing, CTC, spectra; a flag that ends two loops."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Sounds(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, number):
        return torch.randn(2000 + 100 * (number % 7)), torch.randint(1, 20, (5 + number % 3,))


class Buckets(Sampler):
    def __init__(self, dataset, size):
        order = sorted(range(len(dataset)), key=lambda one: one % 7)
        self.batches = [order[i : i + size] for i in range(0, len(order), size)]

    def __iter__(self):
        return iter([self.batches[i] for i in torch.randperm(len(self)).tolist()])

    def __len__(self):
        return len(self.batches)

    def set_epoch(self, epoch):
        torch.manual_seed(epoch)


def collated(batch):
    batch = sorted(batch, key=lambda one: -len(one[0]))
    sounds, texts = zip(*batch, strict=True)
    sizes = (torch.tensor([len(one) for one in each]) for each in (sounds, texts))
    return (pad_sequence(sounds, True), torch.cat(texts), *sizes)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(33)
        self.rnn = nn.LSTM(33, 24, bidirectional=True)
        self.head = nn.Linear(48, 42)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, sounds, lengths):
        spectra = torch.stft(sounds, 64, 32, window=self.window, return_complex=True).abs()
        found = self.norm(torch.log1p(spectra)).permute(2, 0, 1)
        lengths = lengths // 32 + 1
        packed = pack_padded_sequence(found, lengths.cpu(), enforce_sorted=True)
        self.rnn.flatten_parameters()
        found, _ = pad_packed_sequence(self.rnn(packed)[0])
        return self.head(found).log_softmax(-1), lengths


dataset = Sounds()
sampler = Buckets(dataset, 6)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collated, num_workers=1)
model = nn.DataParallel(Listener().cuda())
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", patience=2)
averaged = torch.optim.swa_utils.AveragedModel(model)
scaler = torch.amp.GradScaler("cuda", enabled=True)
num_steps, total_steps = 79, 0
should_keep_training = True
while should_keep_training:
    sampler.set_epoch(total_steps)
    for i_batch, (sounds, texts, lengths, sizes) in enumerate(loader):
        optimizer.zero_grad()
        told, lengths = model(sounds.cuda(), lengths.cuda())
        loss = nn.functional.ctc_loss(
            told.float(), texts.cuda(), lengths, sizes.cuda(), zero_infinity=True
        )
        scaler.scale(loss / told.size(1)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        averaged.update_parameters(model)
        total_steps += 1
        if total_steps > num_steps:
            should_keep_training = False
            break
    plateau.step(loss.detach())
