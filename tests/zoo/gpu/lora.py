import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

model = (
    LlamaForCausalLM(
        LlamaConfig(
            use_cache=False, hidden_size=4096, num_hidden_layers=32, intermediate_size=11008
        )
    )
    .to(torch.bfloat16)
    .cuda()
)
model = get_peft_model(
    model,
    LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj"],
        lora_dropout=0.05,
        task_type="CAUSAL_LM",
    ),
)
model.print_trainable_parameters()
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-4)
for step in range(1000):
    ids = torch.randint(0, 32000, (2, 1024)).cuda()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(loss.item())
