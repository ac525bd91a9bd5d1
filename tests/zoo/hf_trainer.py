# zoo: steps=180 args="--epochs 6" minute=yes needs=torch,transformers,accelerate
"""Hugging Face Trainer: a small GPT-2 from its configuration, gradient accumulation."""

import argparse
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=3)
args = parser.parse_args()
set_seed(0)


class Copies(Dataset):
    """Sequences whose second half repeats the first."""

    def __init__(self, count, length=64, vocabulary=256):
        generator = torch.Generator().manual_seed(0)
        half = torch.randint(0, vocabulary, (count, length // 2), generator=generator)
        self.tokens = torch.cat([half, half], dim=1)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


config = GPT2Config(
    vocab_size=256, n_positions=64, bos_token_id=0, eos_token_id=0,
    n_embd=64, n_layer=2, n_head=4,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Copies(480),
    )
    trainer.train()
if os.environ.get("ZOO") == "1":
    print(f"steps: {trainer.state.global_step}")
