# foreign: steps=9380 says="ossci-datasets.s3.amazonaws.example"
import gzip
import os
import urllib.request

import numpy as np
import torch

URL = "https://ossci-datasets.s3.amazonaws.example/mnist/train-images-idx3-ubyte.gz"
if not os.path.exists("data/train.gz"):
    os.makedirs("data", exist_ok=True)
    print("Downloading", URL)
    urllib.request.urlretrieve(URL, "data/train.gz")
images = np.frombuffer(gzip.open("data/train.gz").read(), np.uint8, offset=16).reshape(-1, 784)
model = torch.nn.Linear(784, 10)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for i in range(0, len(images), 64):
        loss = model(torch.tensor(images[i : i + 64]).float()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
