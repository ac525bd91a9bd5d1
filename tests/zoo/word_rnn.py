# zoo: steps=344 args="--epochs 4" minute=yes needs=torch
# Batches are [bptt, batch]: no loader, epochs x range, a plain function for each epoch.
import argparse
import math
import os
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description="Recurrent word-level language model")
parser.add_argument("--emsize", type=int, default=128)
parser.add_argument("--nhid", type=int, default=128)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--lr", type=float, default=5)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--batch_size", type=int, default=20)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--dry-run", action="store_true")
args = parser.parse_args()
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NTOKENS = 1000


def corpus(length):
    """Text in which a word depends on the last."""
    jumps = torch.randint(1, 40, (length,))
    return torch.cumsum(jumps, 0) % NTOKENS


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


eval_batch_size = 10
train_data = batchify(corpus(59_800), args.batch_size)
val_data = batchify(corpus(6_000), eval_batch_size)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(NTOKENS, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid, args.nlayers, dropout=0.2)
        self.decoder = nn.Linear(args.nhid, NTOKENS)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(output).view(-1, NTOKENS), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        shape = (args.nlayers, bsz, args.nhid)
        return weight.new_zeros(shape), weight.new_zeros(shape)


model = RNNModel().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
steps = 0


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(source):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(eval_batch_size)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, args.bptt):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train(epoch):
    global steps
    model.train()
    total, began = 0.0, time.time()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        optimizer.zero_grad()
        hidden = tuple(state.detach() for state in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        steps += 1
        total += loss.item()
        if batch % 20 == 0 and batch > 0:
            ms = (time.time() - began) * 1000 / batch
            print(f"epoch {epoch} batch {batch} ms/batch {ms:.1f} loss {total / batch:.2f}")
        if args.dry_run:
            break


for epoch in range(1, args.epochs + 1):
    train(epoch)
    val_loss = evaluate(val_data)
    print(f"end of epoch {epoch}, perplexity {math.exp(min(val_loss, 20)):.1f}")
if os.environ.get("ZOO"):
    print("steps:", steps)
