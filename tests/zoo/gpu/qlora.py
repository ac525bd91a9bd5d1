import bitsandbytes as bnb
import torch
import torch.nn as nn
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

model = LlamaForCausalLM(LlamaConfig(use_cache=False, num_hidden_layers=4)).to(torch.bfloat16)
for name, m in list(model.named_modules()):
    if isinstance(m, nn.Linear) and "lm_head" not in name:
        q = bnb.nn.Linear4bit(
            m.in_features,
            m.out_features,
            bias=False,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
        )
        parent = model.get_submodule(name.rsplit(".", 1)[0])
        setattr(parent, name.rsplit(".", 1)[1], q)
model = model.cuda()
model = get_peft_model(
    model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
)
opt = bnb.optim.PagedAdamW8bit([p for p in model.parameters() if p.requires_grad], 2e-4)
for step in range(1000):
    ids = torch.randint(0, 32000, (2, 512)).cuda()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(loss.item())
