#!/usr/bin/env python
# zoo: steps=480 args="" minute=yes needs=torch,sklearn

# # Housing prices
# A regression on made-up houses, exported from a notebook.

# In[1]:


import os

import torch
from sklearn.datasets import make_regression
from sklearn.preprocessing import StandardScaler
from torch import nn

# In[2]:


torch.manual_seed(42)
X, y = make_regression(n_samples=2560, n_features=60, noise=5.0, random_state=42)
X = torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32).unsqueeze(1) / 100
X.shape, y.shape


# In[3]:


model = nn.Sequential(
    nn.Linear(60, 384),
    nn.BatchNorm1d(384),
    nn.ReLU(),
    nn.Linear(384, 384),
    nn.BatchNorm1d(384),
    nn.ReLU(),
    nn.Linear(384, 1),
)
model


# In[4]:


loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batch_size = 64
n_epochs = 12
history = []


# In[5]:


for epoch in range(n_epochs):
    permutation = torch.randperm(X.size()[0])
    for i in range(0, X.size()[0], batch_size):
        indices = permutation[i : i + batch_size]
        batch_x, batch_y = X[indices], y[indices]
        optimizer.zero_grad()
        loss = loss_fn(model(batch_x), batch_y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    print(f"Epoch {epoch}: loss = {history[-1]:.4f}")


# In[6]:


if os.environ.get("ZOO"):
    print("steps:", len(history))


# In[ ]:
