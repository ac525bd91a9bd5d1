import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

model = BertForSequenceClassification(BertConfig(num_labels=2)).to("cuda")
data = TensorDataset(
    torch.randint(0, 30000, (3000, 128)),
    torch.ones(3000, 128, dtype=torch.long),
    torch.randint(0, 2, (3000,)),
)
loader = DataLoader(data, 32, shuffle=True)
opt = torch.optim.AdamW(model.parameters(), 2e-5)
sched = get_linear_schedule_with_warmup(opt, 10, 3 * len(loader))
for epoch in range(3):
    for ids, mask, y in loader:
        out = model(input_ids=ids.cuda(), attention_mask=mask.cuda(), labels=y.cuda())
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        acc = (out.logits.argmax(-1).cpu() == y).float().mean()
        print(f"{out.loss.item():.3f} {acc:.2f}")
