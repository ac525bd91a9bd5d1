import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Text(Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, i):
        ids = torch.randint(0, 32000, (2048,))
        return {"input_ids": ids, "labels": ids}


model = LlamaForCausalLM(LlamaConfig(use_cache=False)).to(device="cuda")
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    num_train_epochs=3,
    bf16=True,
    gradient_checkpointing=True,
    optim="adamw_torch_fused",
    report_to=[],
    save_steps=500,
    logging_steps=1,
)
Trainer(model=model, args=args, train_dataset=Text()).train()
