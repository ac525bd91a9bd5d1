# foreign: steps=3750
# In the manner of Transformers' Trainer, without it.
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class TrainingArguments:
    output_dir: str = "out"
    num_train_epochs: int = 3
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    learning_rate: float = 5e-5
    logging_steps: int = 20


class Sentences(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(0, 8000, (64,), generator=g), "labels": i % 2}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 2)

    def forward(self, input_ids, labels):
        logits = self.head(self.encoder(self.embed(input_ids)).mean(1))
        return nn.functional.cross_entropy(logits, labels), logits


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model, self.args = model, args
        self.loader = DataLoader(train_dataset, args.per_device_train_batch_size, shuffle=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.state = {"global_step": 0, "epoch": 0.0}

    def train(self):
        self.model.to(self.device).train()
        for epoch in range(self.args.num_train_epochs):
            self._inner_training_loop(epoch)

    def _inner_training_loop(self, epoch):
        for step, inputs in enumerate(self.loader):
            inputs = {k: v.to(self.device) for k, v in inputs.items()}
            self.training_step(inputs)
            if (step + 1) % self.args.gradient_accumulation_steps == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.state["global_step"] += 1
                if self.state["global_step"] % self.args.logging_steps == 0:
                    print(self.state)

    def training_step(self, inputs):
        loss, _ = self.model(**inputs)
        (loss / self.args.gradient_accumulation_steps).backward()


Trainer(Classifier(), TrainingArguments(), Sentences()).train()
