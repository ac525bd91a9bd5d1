import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

model = WhisperForConditionalGeneration(WhisperConfig(decoder_start_token_id=1)).cuda()
opt = torch.optim.AdamW(model.parameters(), 1e-5)
scaler = torch.amp.GradScaler("cuda")
for step in range(500):
    with torch.autocast("cuda", torch.float16):
        loss = model(
            input_features=torch.rand(4, 80, 3000).cuda(),
            labels=torch.randint(3, 1000, (4, 64)).cuda(),
        ).loss
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
