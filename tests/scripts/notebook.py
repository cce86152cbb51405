#!/usr/bin/env python

# # A notebook, converted

# In[1]:


import torch
from torch import nn

torch.manual_seed(0)


# In[2]:


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


# In[3]:


history = []
for step in range(30):
    inputs = torch.randn(8, 16)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item() + step)


# In[4]:


print(*[value.hex() for value in history], sep="\n")
