"""Train BERT-large as Transformers' Trainer of January 2022 did: its guide to a single GPU.

512 tokens of dummy data a sample on a V100 of 16 GB, PyTorch 1.10: gradients stay between steps,
updates go parameter by parameter, a softmax keeps its input beside its result (until 1.11).
"""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        _, y = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, -1, grad.dtype)


def softmax(x, dim, dtype=None):
    return Softmax.apply(x.float() if torch.is_autocast_enabled("cuda") else x)


torch.nn.functional.softmax = softmax
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--passes", type=int, default=1)
parser.add_argument("--checkpointed", action="store_true")
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--optimizer", default="adamw", choices=("adamw", "adafactor", "adam8bit"))
args = parser.parse_args()

config = BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    num_labels=2,
    attn_implementation="eager",
)
model = BertForSequenceClassification(config).to("cuda").train()
if args.checkpointed:
    model.gradient_checkpointing_enable({"use_reentrant": True})
parameters = list(model.parameters())
if args.optimizer == "adafactor":
    from transformers import Adafactor

    optimizer = Adafactor(parameters, scale_parameter=False, relative_step=False, lr=5e-5)
elif args.optimizer == "adam8bit":
    import bitsandbytes

    optimizer = bitsandbytes.optim.Adam8bit(parameters, lr=5e-5)
else:
    optimizer = torch.optim.AdamW(parameters, lr=5e-5, foreach=False)
scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
labels = torch.zeros(args.batch, dtype=torch.long, device="cuda")
for step in range(128):
    for _ in range(args.passes):
        ids = torch.randint(100, 30000, (args.batch, 512)).to("cuda")
        with torch.autocast("cuda", torch.float16, enabled=args.fp16):
            loss = model(input_ids=ids, labels=labels).loss / args.passes
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=False)
